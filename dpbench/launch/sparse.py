"""Sparse gradients: which architectures have them, and what cannot average or use them."""

from __future__ import annotations

from functools import cache

from dpbench import architecture
from dpbench.errors import UsageError
from dpbench.specs import RunSpec
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
        return not theirs and getattr(architecture.load(arch), "sparse_gradients", False)
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
    if spec.comm_hook == "powersgd":
        return f"the powersgd hook takes {_NOT_THESE}"
    return optimizer_reason(workload.architecture, workload.optimizer)
