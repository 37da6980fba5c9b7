"""All private names of torch that this package uses, each with the public way that is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Joinable

BEFORE_2_10 = {
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
}
"""Methods of process groups whose names before torch 2.10 were private, with these names.

torch.distributed calls them for all_gather_into_tensor and reduce_scatter_tensor, and its C++ code
calls them in all versions. Public way: none in torch 2.8 and 2.9.
"""

_eval_frame: Any = torch._C._dynamo.eval_frame


def not_compiled(cls: type) -> type:
    """Run the methods of a class, and all that they call, uncompiled when compiled code calls them.

    By default the compiler also compiles each function that runs within a graph break, which takes
    seconds and is slower afterwards. Public way: torch.compiler.disable, which imports the compiler
    where it is used, and that takes seconds too.
    """
    for value in vars(cls).values():
        function = value.fget if isinstance(value, property) else value
        if isinstance(function, FunctionType):
            # Keeps the function out of the graph of compiled code that calls it.
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            # Keeps the function from being compiled as a frame of its own.
            skip = _eval_frame._FrameAction.SKIP
            strategy = _eval_frame._FrameExecStrategy(skip, skip)
            _eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return cls


def saved_tensors_hooks() -> tuple[Any, Any] | None:
    """The innermost pair of torch.autograd.graph.saved_tensors_hooks of this thread.

    It tells that activation checkpointing is under way. Public way: none.
    """
    pair: tuple[Any, Any] | None = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return pair


def forward_ad_is_active() -> bool:
    """Whether forward-mode AD is under way; its tangents would not reach replicas in threads.

    Public way: none.
    """
    return torch.autograd.forward_ad._current_level >= 0


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call `callback` at the end of the running backward; call this from one of its hooks.

    Public way: none; torch's own DistributedDataParallel finishes its buckets this way too.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(callback)


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target, in as few calls as torch can.

    Public way: a loop, which takes three times as long for a thousand small tensors. The name is
    private, but torch's documentation lists the foreach family.
    """
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def broadcast_coalesced(
    tensors: Sequence[Tensor], group: dist.ProcessGroup, source: int, piece_bytes: int
) -> None:
    """Overwrite dense tensors with those of one rank of the group, in few messages; a collective.

    Public way: a broadcast for each tensor, or copies to and from a flat tensor in Python.
    """
    dist._broadcast_coalesced(group, list(tensors), piece_bytes, source)  # type: ignore[attr-defined]


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


def is_in_join(joinable: Joinable) -> bool:
    """Whether a Join context of torch is active for this object.

    Public way: none. `Join.notify_join_context` also returns None for all but the first object.
    """
    return bool(joinable._join_config.enable)


def leave_join(joinable: Joinable) -> None:
    """End what a Join context has begun: torch leaves it on, at two collectives a step."""
    joinable._join_config = joinable._join_config._replace(enable=False)
