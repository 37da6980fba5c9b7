"""The error about a backward that left parameters out on one rank; all ranks raise it.

Where the backward of rank A left parameters out and that of rank B did not, B waits for the buckets
that A has not sent. On a CPU and without a communication hook they meet like this; elsewhere only A
raises, and the wait of B ends by its timeout:

A, in its next forward    sends the other buckets, as zeros, with the abort flag in the last one
B, at its end             gets all buckets, and finds the flag
both                      gather the names of missing parameters, and raise UnfinishedReduction
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch.distributed as dist

from dpbench.parallel.groups import gather_values


class UnfinishedReduction(RuntimeError):
    """A backward left out parameters, so that not all gradients were reduced.

    Attributes:
        names: of the parameters that got no gradient on some rank; empty if that is not known.
    """

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = names


def missing_gradients_error(
    names: Sequence[str], missing: Sequence[int], group: dist.ProcessGroup, *, ask_all: bool
) -> UnfinishedReduction:
    """The error for the parameters that are missing here, as indices in `names`; with `ask_all` for
    those that are missing on any rank, which is a collective."""
    by_rank = {dist.get_rank(group): list(missing)}
    if ask_all:
        by_rank = dict(enumerate(gather_values(list(missing), group)))
    where = "; ".join(
        f"rank {rank}: " + ", ".join(f"{index} ({names[index]})" for index in indices)
        for rank, indices in by_rank.items()
        if indices
    )
    # In the words of torch's class, which users search for.
    return UnfinishedReduction(
        "Expected to have finished reduction in the prior iteration before starting a new one. "
        "This error indicates that your module has parameters that were not used in producing "
        "loss. You can enable unused parameter detection by passing the keyword argument "
        "`find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by "
        "making sure all `forward` function outputs participate in calculating loss. With "
        "static_graph=True, the training graph has changed in this iteration. Parameter "
        f"indices which did not receive grad for {where}",
        names=[names[index] for index in sorted(set(chain(*by_rank.values())))],
    )
