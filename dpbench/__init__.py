"""dpbench: how fast data-parallel training goes, how well it scales, and what makes it slower.

Everything here is imported on first use, and torch with it, so that the command line starts fast.
"""

from __future__ import annotations

import importlib
from typing import Any

from dpbench.shm_registration import register_shm

__all__ = ["DataParallel", "DistributedDataParallel", "__version__", "gather", "scatter"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("dpbench")
    if name in __all__:
        return getattr(importlib.import_module("dpbench.parallel"), name)
    raise AttributeError(f"module 'dpbench' has no attribute {name!r}")


register_shm()
