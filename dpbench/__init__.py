"""Benchmark data-parallel PyTorch training: throughput, scaling efficiency and regressions.

    >>> results = dpbench.sweep("mlp", batch_sizes=[32, 64], gpus=2)
    >>> results = dpbench.load("results/examples/two-cores")

`sweep` measures, `load` reads results, `explain` says where efficiency is lost, `check` looks for
regressions, and `train` trains for epochs. `DistributedDataParallel` and `DataParallel` are for
your own training loop; `dpbench.parallel` has more for it.
"""

from __future__ import annotations

import importlib
from typing import Any

from dpbench.requirements import check_requirements

__version__ = "0.2.0"

# Imported on first use, and torch with them, so that the command line starts fast.
_HOMES = {
    "Answer": "dpbench.report.answer",
    "DataParallel": "dpbench.parallel",
    "DistributedDataParallel": "dpbench.parallel",
    "Results": "dpbench.api.results",
    "Trained": "dpbench.api.train",
    "TrainingResult": "dpbench.training.dp_train",
    "analyze_scaling": "dpbench.analysis.scaling",
    "check": "dpbench.api.commands",
    "dp_train": "dpbench.api.dp_train",
    "explain": "dpbench.api.commands",
    "gather": "dpbench.parallel",
    "load": "dpbench.api.results",
    "process_group": "dpbench.rendezvous.process_group",
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
