"""Small trainings whose epochs tests divide."""

from __future__ import annotations

from typing import Any

from dpbench.specs import WorkloadSpec
from dpbench.specs.training import TrainingSpec


def training_spec(*, seed: int = 0, **changes: Any) -> TrainingSpec:
    """Two replicas of ours on gloo, 4 samples each; `devices` follows `group_size`."""
    values: dict[str, Any] = {
        "workload": WorkloadSpec(architecture="mlp", dataset="synthetic", seed=seed),
        "implementation": "ddp",
        "backend": "gloo",
        "group_size": 2,
        "batch_size": 4,
        "threads_per_replica": 1,
        "epochs": 1,
    }
    values.update(changes)
    values.setdefault("devices", ("cpu",) * values["group_size"])
    return TrainingSpec(**values)
