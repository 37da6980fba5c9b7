"""All private names of torch that this package uses, each with the public way that is missing."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

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
