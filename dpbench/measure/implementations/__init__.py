"""The implementations behind one interface: one file each, with its traits and its wrapper.

A file is imported when a module is first wrapped by it: sharding and third-party libraries take
seconds to import, which no other trial should pay. `dpbench.specs.traits` reads the traits of all
files without importing any.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch

from dpbench.measure.implementations.model import (
    Communication,
    ParallelModel,
    Plain,
    Settings,
    averaging_weight,
)
from dpbench.specs.traits import module_name

__all__ = ["Communication", "ParallelModel", "Plain", "Settings", "averaging_weight", "wrap"]

Wrap = Callable[[torch.nn.Module, Settings, int], ParallelModel]


def wrap(module: torch.nn.Module, settings: Settings, rank: int) -> ParallelModel:
    """Wrap `module`, already on this rank's device, for the implementation of `settings`."""
    return wrapper(settings.implementation)(module, settings, rank)


def wrapper(implementation: str) -> Wrap:
    """Import the implementation's file, and with it the libraries that it needs."""
    file = import_module(f"{__name__}.{module_name(implementation)}")
    function: Wrap = file.wrap
    return function
