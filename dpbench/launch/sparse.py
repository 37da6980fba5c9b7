"""Sparse gradients, only of the rows of an embedding that were looked up: who takes them.

As tried with torch 2.13; torch itself says so in the middle of a step. A model of somebody's is
not asked, since that would run their code: there a rank fails in its first step.
"""

from __future__ import annotations

from functools import cache

from dpbench import architecture
from dpbench.errors import UsageError
from dpbench.specs import TrialSpec
from dpbench.training_spec import TrainingSpec
from dpbench.traits import IMPLEMENTATIONS

OPTIMIZERS = ("sgd", "sgd-foreach")
"""torch's SparseAdam takes them too, but no dense ones."""
_NOT_THESE = "dense gradients only, and the architecture has sparse ones"


@cache
def has_sparse_gradients(arch: str) -> bool:
    """As far as the architecture tells; never of somebody's, or of one that cannot be loaded."""
    try:
        theirs = architecture.is_theirs(arch)
        return not theirs and architecture.sparse_gradients(architecture.load(arch))
    except UsageError:  # said where it is loaded to be trained
        return False


def optimizer_reason(arch: str, optimizer: str) -> str | None:
    """Why the optimizer cannot train the architecture; None if it can."""
    if optimizer in OPTIMIZERS or not has_sparse_gradients(arch):
        return None
    return f"torch's {optimizer} takes {_NOT_THESE}; expected {' or '.join(OPTIMIZERS)}"


def sparse_reason(spec: TrialSpec | TrainingSpec) -> str | None:
    """Why the gradients cannot be averaged, or stepped with; None if they can."""
    name, backend, workload = spec.implementation, spec.backend, spec.workload
    if not has_sparse_gradients(workload.architecture):
        return None
    backends = IMPLEMENTATIONS[name].sparse_backends
    if backends == ():
        return f"{name} takes {_NOT_THESE}; ddp takes both"
    if backends is not None and backend not in backends:
        return (
            f"{name} on {backend} takes {_NOT_THESE}; it takes both on {' and '.join(backends)}, "
            "and ddp everywhere"
        )
    if spec.comm_hook == "powersgd":
        return f"the powersgd hook takes {_NOT_THESE}"
    return optimizer_reason(workload.architecture, workload.optimizer)
