"""Keeps torch.compile out of code that communicates, as it stays out of torch's own C++ code."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

_eval_frame: Any = torch._C._dynamo.eval_frame


def not_compiled(cls: type) -> type:
    """Run the methods of a class, and all that they call, uncompiled when compiled code calls them.

    By default the compiler also compiles each function that runs within a graph break. The public
    way to stop it, torch.compiler.disable, imports the compiler, which takes seconds.
    """
    for value in vars(cls).values():
        for function in _functions(value):
            # Keeps the function out of the graph of compiled code that calls it.
            function._torchdynamo_disable = True
            function._torchdynamo_disable_msg = "what communicates is not compiled"
            # Keeps the function from being compiled as a frame of its own.
            skip = _eval_frame._FrameAction.SKIP
            strategy = _eval_frame._FrameExecStrategy(skip, skip)
            _eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return cls


def _functions(value: Any) -> list[Any]:
    if isinstance(value, property):
        return [f for f in (value.fget, value.fset) if isinstance(f, FunctionType)]
    return [value] if isinstance(value, FunctionType) else []
