"""Reasons why a trial or a training cannot run, whatever the devices."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch.distributed as dist

from dpbench import architecture
from dpbench.errors import UsageError
from dpbench.specs import RunSpec, TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

SPARSE_OPTIMIZERS = ("sgd", "sgd-foreach")
"""Optimizers that accept sparse gradients. torch's SparseAdam does too, but no dense ones."""
_NOT_THESE = "dense gradients only, and the architecture has sparse ones"


@cache
def has_sparse_gradients(arch: str) -> bool:
    """Whether the architecture reports sparse gradients; False for a user's architecture, or one
    that cannot be loaded."""
    try:
        theirs = architecture.is_user_code(arch)
        return not theirs and architecture.sparse_gradients(architecture.load(arch))
    except UsageError:  # reported when it is loaded for training
        return False


def optimizer_reason(arch: str, optimizer: str) -> str | None:
    """Why the optimizer cannot train the architecture; None if it can."""
    if optimizer in SPARSE_OPTIMIZERS or not has_sparse_gradients(arch):
        return None
    return f"torch's {optimizer} takes {_NOT_THESE}; expected {' or '.join(SPARSE_OPTIMIZERS)}"


def sparse_reason(spec: RunSpec) -> str | None:
    """Why the sparse gradients cannot be averaged or used by the optimizer; None if they can."""
    name, backend, workload = spec.implementation, spec.backend, spec.workload
    if workload.script or not has_sparse_gradients(workload.architecture):
        return None
    backends = IMPLEMENTATIONS[name].sparse_backends
    if backends is not None and backend not in backends:
        return f"{name} on {backend} takes {_NOT_THESE}; ddp takes both"
    if spec.comm_hook in ("powersgd", "hierarchical"):
        return f"the {spec.comm_hook} hook takes {_NOT_THESE}"
    return optimizer_reason(workload.architecture, workload.optimizer)


def missing_package_reason(implementation: str) -> str | None:
    """Why the implementation cannot be used here: its package is not installed. None if nothing is
    missing.

    This looks for the package without importing it.
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
    if trial.comm_hook == "hierarchical" and trial.devices[0] != "cpu":
        return "the hierarchical hook averages tensors on the CPU, and these replicas are on GPUs"
    return None


def shards_reason(trial: TrialSpec) -> str | None:
    """Why the trial cannot run with parameters or their steps sharded over the ranks; None if it
    can."""
    traits = IMPLEMENTATIONS[trial.implementation]
    shards = traits.shards_optimizer or traits.shards_parameters
    if shards and trial.backend == "shm" and not hasattr(dist, "all_gather_single"):
        return f"{trial.implementation} on shm needs torch 2.13 or later"
    if traits.shards_optimizer and trial.workload.dtype == "f16":
        return "a loss scale of float16 needs whole gradients, and it shards them; bf16 has none"
    return None
