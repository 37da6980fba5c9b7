"""The implementations behind one interface: one file each, with its traits and its wrapper.

A file is imported when a module is first wrapped by it: sharding and third-party libraries take
seconds to import, which no other trial should pay. `dpbench.specs.traits` reads the traits of all
files without importing any.
"""

from __future__ import annotations

from importlib import import_module

import torch

from dpbench.measure.implementations.model import ParallelModel, Plain
from dpbench.specs import ParallelSpec

__all__ = ["ParallelModel", "Plain", "wrap"]


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> ParallelModel:
    """Wrap `module`, already on this rank's device, for the implementation of `spec`.

    Imports the implementation's file, and with it the libraries that it needs.
    """
    file = import_module(f"{__name__}.{spec.implementation.replace('-', '_')}")
    model: ParallelModel = file.wrap(module, spec, rank)
    return model
