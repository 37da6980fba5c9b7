"""Benchmark data-parallel PyTorch training: throughput, scaling efficiency and regressions.

    >>> results = dpbench.sweep("mlp", batch_sizes=[32, 64], gpus=2)
    >>> results = dpbench.load("results/examples/two-cores")

`sweep` measures, `load` reads results, `explain` says where efficiency is lost, `check` looks for
regressions, and `train` trains for epochs. `DistributedDataParallel`, `DataParallel` and what
belongs to them are for your own training loop; see `dpbench.parallel`.
"""

from __future__ import annotations

import importlib
from typing import Any

from dpbench.requirements import check_requirements

__version__ = "0.2.0"

# Imported on first use, and torch with them, so that the command line starts fast.
_HOMES = {
    "BalancedSampler": "dpbench.data.sharding",
    "DataParallel": "dpbench.parallel",
    "DistributedDataParallel": "dpbench.parallel",
    "Diverged": "dpbench.training.divergence",
    "ShardedOptimizer": "dpbench.parallel",
    "Trained": "dpbench.api.train",
    "TrainingResult": "dpbench.api.dp_train",
    "all_reduce": "dpbench.parallel.groups",
    "analyze_scaling": "dpbench.analysis.scaling",
    "missing_backends": "dpbench.rendezvous.backends",
    "barrier": "dpbench.rendezvous.barrier",
    "broadcast": "torch.distributed",
    "broadcast_checkpoint": "dpbench.parallel",
    "check": "dpbench.api.commands",
    "check_sync": "dpbench.parallel",
    "destroy_process_group": "torch.distributed",
    "dp_train": "dpbench.api.dp_train",
    "explain": "dpbench.api.commands",
    "fork_world": "dpbench.launch.fork_world",
    "gather": "dpbench.parallel",
    "get_rank": "torch.distributed",
    "get_world_size": "torch.distributed",
    "is_initialized": "torch.distributed",
    "load": "dpbench.api.results",
    "local_gpu_index": "dpbench.rendezvous.placement",
    "process_group": "dpbench.rendezvous.process_group",
    "scale_lr": "dpbench.specs.workload",
    "scatter": "dpbench.parallel",
    "sweep": "dpbench.api.commands",
    "train": "dpbench.api.train",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if home := _HOMES.get(name):
        return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'dpbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__]


check_requirements()
