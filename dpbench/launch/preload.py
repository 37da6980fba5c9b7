"""Imports of the server of ranks before it forks the first of them, without any collection.

Collections in between would walk all that torch has made so far, again and again, for a sixth of
the time; nothing that an import makes is garbage for long.
"""

from __future__ import annotations

import gc
from importlib import import_module

MODULES = ("dpbench.launch.rank", "dpbench.measure.trial", "torch._dynamo")
"""The last is imported by every first torch.optim.Optimizer, and takes a second."""


def _import_all() -> None:
    gc.disable()
    for name in MODULES:
        import_module(name)
    gc.enable()


_import_all()
