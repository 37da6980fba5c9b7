"""Explains the errors of DistributedDataParallel about parameters that got no gradient."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from dpbench.errors import DpbenchError
from dpbench.parallel.ddp.reducer import UnfinishedReduction

TORCH_INDICES = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")
"""The list in the error of torch's class, which has no names."""
MAX_PARAMETERS_NAMED = 4


@contextmanager
def unused_parameters_named(module: nn.Module) -> Iterator[None]:
    """Replace these errors, which name arguments and contexts that are not the user's to choose, by
    a DpbenchError.

    `module` is the user's module, inside the wrapper.
    """
    try:
        yield
    except RuntimeError as error:
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if isinstance(error, UnfinishedReduction):
            names = list(error.names) or [name for name, p in trained if p.grad is None]
        elif indices := TORCH_INDICES.search(str(error)):
            names = [trained[int(index)][0] for index in indices[1].split()]
        else:
            raise
        raise DpbenchError(without_gradient(names)).with_traceback(error.__traceback__) from None


def without_gradient(names: Sequence[str]) -> str:
    """Say that these parameters got no gradient, and what to do."""
    shown = ", ".join(names[:MAX_PARAMETERS_NAMED])
    if (more := len(names) - MAX_PARAMETERS_NAMED) > 0:
        shown += f" and {more} more"
    return (
        f"parameters without a gradient in a step: {shown}; use them in the loss, freeze them with "
        "requires_grad_(False), or use dp, or torch-ddp-static if they are the same in every step; "
        "in your own script, set find_unused_parameters=True"
    )
