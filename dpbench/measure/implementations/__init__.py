"""The implementations behind one interface, and which file wraps a module as each of them.

A file is imported when a module is first wrapped by it: sharding and the libraries of others take
seconds to import, for which no other trial may pay.
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

__all__ = ["Communication", "ParallelModel", "Plain", "Settings", "averaging_weight", "wrap"]

Wrap = Callable[[torch.nn.Module, Settings, int], ParallelModel]

FILES: dict[str, str] = {
    "dp": "ours",
    "ddp": "ours",
    "torch-dp": "torch_dp",
    "torch-ddp": "torch_ddp",
    "torch-ddp-static": "torch_ddp",
    "torch-replicate": "torch_replicate",
    "fsdp2": "fsdp2",
    "accelerate": "accelerate",
    "fabric": "fabric",
    "deepspeed-0": "deepspeed",
    "local-sgd": "local_sgd",
    "single": "plain",
    "independent": "plain",
}
"""The file of this package whose `WRAPPERS` has the implementation."""


def wrap(module: torch.nn.Module, settings: Settings, rank: int) -> ParallelModel:
    """Wraps `module`, already on this rank's device, as the implementation of `settings` says."""
    return wrapper(settings.implementation)(module, settings, rank)


def wrapper(implementation: str) -> Wrap:
    """Imports what the implementation needs."""
    file = import_module(f"{__name__}.{FILES[implementation]}")
    wrappers: dict[str, Wrap] = file.WRAPPERS
    return wrappers[implementation]
