"""dpbench: how fast data-parallel training goes, how well it scales, and what makes it slower.

`dpbench.DataParallel` and `dpbench.DistributedDataParallel` are imported, and torch with them, on
first use, so that the command line starts without torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

__all__ = ["DataParallel", "DistributedDataParallel", "__version__", "gather", "scatter"]

__version__ = importlib.metadata.version("dpbench")

_PARALLEL = frozenset(__all__) - {"__version__"}


def __getattr__(name: str) -> Any:
    if name in _PARALLEL:
        return getattr(importlib.import_module("dpbench.parallel"), name)
    raise AttributeError(f"module 'dpbench' has no attribute {name!r}")
