"""Explains the errors of DistributedDataParallel about parameters that got no gradient."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from dpbench.errors import DpbenchError

ERRORS = (
    "Expected to have finished reduction in the prior iteration",  # torch's and dpbench's
    "ShardedOptimizer: no backward has reduced gradients",
)
"""Beginnings of the errors."""
MOST_NAMED = 4


class UnusedParameters(DpbenchError):
    """Parameters that require a gradient got none in a step."""


@contextmanager
def unused_parameters_named(module: nn.Module) -> Iterator[None]:
    """Replace these errors, which name arguments and contexts that are not the user's to choose.

    `module` is the user's module, inside the wrapper.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(ERRORS):
            raise
        # torch writes "for rank 0: 4 5", dpbench "for rank 0: 4 (a.weight), 5 (a.bias); rank 1: …".
        # With TORCH_DISTRIBUTED_DEBUG torch also writes a line of names.
        line = str(error).partition("indices which did not receive grad for ")[2].partition("\n")[0]
        ranks = line.split("; ")
        listed = [re.sub(r"\(.*?\)", "", rank.partition(": ")[2]) for rank in ranks]
        missing = {int(index) for indices in listed for index in re.findall(r"\d+", indices)}
        trained = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
        if missing:
            names = [name for index, (name, _) in enumerate(trained) if index in missing]
        else:
            names = [name for name, one in trained if one.grad is None]
        if not names:
            raise
        raise UnusedParameters(without_gradient(names)).with_traceback(
            error.__traceback__
        ) from None


def without_gradient(names: Sequence[str]) -> str:
    """Say that these parameters got no gradient, and what to do."""
    shown = ", ".join(names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (
        f"parameters without a gradient in a step: {shown}{more}; use them in the loss, freeze "
        "them with requires_grad_(False), or use dp, or torch-ddp-static if they are the same in "
        "every step; in your own script, set find_unused_parameters=True"
    )
