"""Methods that torch.compile leaves uncompiled."""

from __future__ import annotations

from functools import cache
from types import FunctionType

import torch


@cache
def leave_uncompiled(cls: type, *names: str) -> None:
    """Run methods of a class uncompiled when compiled code calls them; by default all public ones.

    Without this the compiler compiles each function that runs within a graph break, which takes
    seconds and is slower afterwards. Call it when the first instance is made: it imports the
    compiler, which takes seconds too, as the first torch.optim.Optimizer does.
    """
    methods = {n: f for n, f in vars(cls).items() if isinstance(f, FunctionType)}
    for name in names or [name for name in methods if not name.startswith("_")]:
        setattr(cls, name, torch.compiler.disable(methods[name]))  # type: ignore[no-untyped-call]
