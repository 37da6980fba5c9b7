"""Keeps torch.compile out of what communicates, as it keeps out of what torch has in C++."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

_eval_frame: Any = torch._C._dynamo.eval_frame


def not_compiled(cls: type) -> type:
    """Run the methods of a class as they are, with all that they call, when compiled code calls.

    The compiler takes each function that runs within a graph break for one more to compile. The
    public way to stop it, torch.compiler.disable, imports the compiler, which takes seconds.
    """
    for value in vars(cls).values():
        for function in _functions(value):
            # Where compiled code would take the function into its own graph.
            function._torchdynamo_disable = True
            function._torchdynamo_disable_msg = "what communicates is not compiled"
            # Where a frame of its own would be compiled.
            if hasattr(_eval_frame, "set_code_exec_strategy"):
                skip = _eval_frame._FrameAction.SKIP
                strategy = _eval_frame._FrameExecStrategy(skip, skip)
                _eval_frame.set_code_exec_strategy(function.__code__, strategy)
            else:  # before torch 2.7
                _eval_frame.skip_code(function.__code__)
    return cls


def _functions(value: Any) -> list[Any]:
    if isinstance(value, property):
        return [f for f in (value.fget, value.fset) if isinstance(f, FunctionType)]
    return [value] if isinstance(value, FunctionType) else []
