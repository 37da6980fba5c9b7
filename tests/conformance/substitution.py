"""Another class in the place of torch's DistributedDataParallel, wherever torch holds it."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType

from torch.nn.parallel.distributed import DistributedDataParallel as TorchDDP

# The compiler splits graphs at the buckets of torch's class; any other module it takes as it is.
UNTOUCHED = ("dpbench", "tests.", "torch._dynamo")


def use(wrapper: type) -> None:
    """Every imported module that holds torch's class holds `wrapper` from now on.

    What is called with torch's class later holds torch's again.
    """
    for module, name in _places():
        setattr(module, name, wrapper)


@cache
def _places() -> list[tuple[ModuleType, str]]:
    """Where torch's class was held before anything took its place."""
    return [
        (module, name)
        for module in list(sys.modules.values())
        if not getattr(module, "__name__", "").startswith(UNTOUCHED)
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is TorchDDP
    ]
