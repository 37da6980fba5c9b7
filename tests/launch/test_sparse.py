"""What takes sparse gradients, and what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from dpbench.launch.machine import Machine
from dpbench.launch.sparse import (
    SPARSE_OPTIMIZERS,
    has_sparse_gradients,
    optimizer_reason,
    sparse_reason,
)
from dpbench.measure.step import build_optimizer
from dpbench.specs import OPTIMIZERS, WorkloadSpec
from tests.builders import trial_spec

NO_GPU = Machine(cores=2, gpus=(), cuda=None, missing_backends=())
SPARSE = "dlrm:dense=4,tables=2,rows=9,sparse=true"


def workload(arch: str = SPARSE, optimizer: str = "sgd") -> WorkloadSpec:
    return WorkloadSpec(architecture=arch, dataset="synthetic", optimizer=optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_optimizers_that_are_refused_are_those_that_torch_refuses(optimizer: str) -> None:
    table = nn.Embedding(5, 2, sparse=True)
    stepping = build_optimizer(table, trial_spec(workload=workload(optimizer=optimizer)))
    table(torch.tensor([1, 3])).sum().backward()
    if optimizer in SPARSE_OPTIMIZERS:
        stepping.step()
        assert optimizer_reason(SPARSE, optimizer) is None
        return
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        stepping.step()
    reason = f"torch's {optimizer} takes dense gradients only, and the architecture has sparse ones"
    assert reason in (optimizer_reason(SPARSE, optimizer) or "")
    assert optimizer_reason(SPARSE.replace("true", "false"), optimizer) is None


def test_an_architecture_tells_of_its_gradients_and_nobodys_code_runs_for_that() -> None:
    assert has_sparse_gradients(SPARSE)
    for arch in ("dlrm", "mlp", "no_such_module:factory", "no_such_architecture"):
        assert not has_sparse_gradients(arch)


@pytest.mark.parametrize(
    ("implementation", "backend", "hook", "refused"),
    [
        ("torch-ddp", "gloo", "none", False),
        ("ddp", "shm", "none", False),
        *(("torch-ddp", backend, "none", True) for backend in ("shm", "nccl")),
        ("fsdp2", "gloo", "none", True),
        ("ddp", "gloo", "bf16", False),
        ("ddp", "gloo", "powersgd", True),
        ("dp", "threads", "none", False),
        ("single", "none", "none", False),
    ],
)
def test_what_cannot_average_sparse_gradients_is_refused_with_the_reason(
    implementation: str, backend: str, hook: str, refused: bool
) -> None:
    trial = trial_spec(
        workload=workload(), implementation=implementation, backend=backend, comm_hook=hook
    )
    reason = sparse_reason(trial)
    assert (reason is not None) == refused
    assert sparse_reason(replace(trial, workload=workload("dlrm"))) is None
    if refused:
        assert "takes dense gradients only" in (reason or "")
        assert NO_GPU.unusable_reason(trial) is not None
