"""What implementations ask for beside devices and backends."""

from __future__ import annotations

from importlib.util import find_spec

from dpbench.specs import TrialSpec
from dpbench.traits import IMPLEMENTATIONS


def missing_package_reason(implementation: str) -> str | None:
    """Why it cannot be wrapped here: its package is not installed. None if nothing is missing.

    Looks for the package and imports nothing.
    """
    package = IMPLEMENTATIONS[implementation].requires
    if package is None or find_spec(package) is not None:
        return None
    return f"{implementation} needs a package: pip install {package.replace('_', '-')}"


def hook_reason(trial: TrialSpec, *, cuda: str | None) -> str | None:
    """Why the trial cannot have its communication hook; `cuda` is the version of torch's build."""
    ours = IMPLEMENTATIONS[trial.implementation].ours
    if trial.comm_hook == "bf16" and not ours and cuda is None:
        return (
            "torch's DistributedDataParallel takes the bf16 hook in builds with CUDA and NCCL "
            "only; ddp takes it everywhere"
        )
    return None


def shards_reason(trial: TrialSpec) -> str | None:
    """Why it cannot be where each rank holds a part of every parameter; None if it can."""
    if not IMPLEMENTATIONS[trial.implementation].shards_parameters:
        return None
    if trial.noise_steps:
        return "the gradient noise scale is measured with whole parameters, and it shards them"
    if trial.workload.optimizer == "sgd-fused":
        return "torch's fused SGD takes no shards of parameters; sgd-foreach does"
    return None
