"""dpbench: how fast data-parallel training goes, how well it scales, and what makes it slower.

Everything here is imported on first use, and torch with it, so that the command line starts fast.
"""

from __future__ import annotations

import importlib
from typing import Any

from dpbench.shm_registration import register_shm

_HOMES = {
    "__version__": None,
    "BalancedSampler": "dpbench.data.sharding",
    "DataParallel": "dpbench.parallel",
    "DistributedDataParallel": "dpbench.parallel",
    "LocalSGD": "dpbench.parallel",
    "NoScatter": "dpbench.parallel",
    "NonFinite": "dpbench.training",
    "Trained": "dpbench.api.trained",
    "TrainingResult": "dpbench.training",
    "accumulate": "dpbench.parallel",
    "all_ranks": "dpbench.parallel",
    "analyze_scaling": "dpbench.analysis.scaling",
    "any_rank": "dpbench.parallel",
    "available_backends": "dpbench.rendezvous.available_backends",
    "barrier": "dpbench.rendezvous.meeting",
    "broadcast_checkpoint": "dpbench.parallel",
    "check_sync": "dpbench.parallel",
    "dp_train": "dpbench.training",
    "fit": "dpbench.parallel",
    "fork_world": "dpbench.launch.fork_world",
    "gather": "dpbench.parallel",
    "load": "dpbench.api.results",
    "local_device": "dpbench.rendezvous.local_device",
    "predict": "dpbench.parallel",
    "process_group": "dpbench.rendezvous.process_group",
    "scale_lr": "dpbench.learning_rate",
    "scatter": "dpbench.parallel",
    "sweep": "dpbench.api.sweep",
    "sync_gradients": "dpbench.parallel",
    "train": "dpbench.api.train",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("dpbench")
    if home := _HOMES.get(name):
        return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'dpbench' has no attribute {name!r}")


register_shm()
