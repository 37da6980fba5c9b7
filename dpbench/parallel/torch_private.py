"""The eight private names of torch that dpbench uses, each with the public way that is missing.

No other module may have one, be it as an attribute, an import, a text or a method that overrides
torch's; tests/parallel/test_torch_private.py counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# _python_dispatch has the documented base class of users' dispatch modes. _pytree knows the
# container classes that transformers and others have registered. Public way to either: none.
from torch.utils import _python_dispatch, _pytree

TorchDispatchMode: Any = _python_dispatch.TorchDispatchMode
pytree: Any = _pytree
BROADCAST_BYTES = 250 * 1024**2
"""Largest message of a broadcast, unless one tensor is larger; limits the memory for the copy."""


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call `callback` at the end of the running backward; call this from one of its hooks.

    Public way: none; torch's own DistributedDataParallel finishes its buckets this way too.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(callback)


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target without a graph, in as few calls as torch can.

    Public way: a loop, which takes three times as long for a thousand small tensors.
    """
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(list(targets), list(sources))


def broadcast_coalesced(tensors: Iterable[Tensor], group: dist.ProcessGroup, root: int = 0) -> int:
    """Overwrite tensors with those of one rank, in few messages; a collective.

    Autograd notices it: a graph that saved one of the tensors has no backward any more.

    Public way: a broadcast for each tensor, or copies to and from a flat tensor in Python.

    Args:
        tensors: dense; the same shapes and dtypes in the same order on every rank.
        group: the ranks.
        root: the group rank that sends.

    Returns:
        The number of bytes of all tensors.
    """
    targets = list(tensors)
    if targets:
        with torch.no_grad():
            dist._broadcast_coalesced(group, targets, BROADCAST_BYTES, root)  # type: ignore[attr-defined]
    return sum(target.nbytes for target in targets)


def version(tensor: Tensor) -> int:
    """How often torch has written to the tensor; 0 for one of inference mode, which does not count.

    Public way: to compare its values.
    """
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def compiled_in_buckets(wrapper: nn.Module) -> Iterator[None]:
    """Let torch.compile split a module that is called in this context at the wrapper's buckets.

    The compiler reads the caps of the wrapper. An unsplit compiled backward hands out all gradients
    at its end, so that no communication overlaps with it. Public way: none.
    """
    wrappers: Any = nn.parallel.DistributedDataParallel
    outer, wrappers._active_ddp_module = wrappers._active_ddp_module, wrapper
    try:
        yield
    finally:
        wrappers._active_ddp_module = outer


class NoLoggingData:
    """Gives a subclass of torch's DistributedDataParallel no statistics of torch's reducer.

    Lightning asks for them when it tears down. Public way: none.
    """

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return {}
