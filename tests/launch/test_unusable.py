"""Which trials cannot run anywhere, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dpbench.launch.machine import Machine
from dpbench.launch.unusable import (
    SPARSE_OPTIMIZERS,
    has_sparse_gradients,
    hook_reason,
    missing_package_reason,
    optimizer_reason,
    shards_reason,
    sparse_reason,
)
from dpbench.measure.step import build_optimizer
from dpbench.specs import OPTIMIZERS, WorkloadSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from tests.builders import WORKLOAD, trial_spec

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
        *(("ddp", "gloo", hook, True) for hook in ("powersgd", "hierarchical")),
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


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    traits = replace(IMPLEMENTATIONS["fabric"], requires="no_such_package")
    monkeypatch.setitem(IMPLEMENTATIONS, "fabric", traits)
    reason = "fabric needs a package: pip install no-such-package"
    assert missing_package_reason("fabric") == reason
    assert NO_GPU.unusable_reason(trial_spec(implementation="fabric")) == reason


@pytest.mark.parametrize(
    ("implementation", "hook", "cuda", "devices", "words"),
    [
        ("ddp", "bf16", None, ("cpu", "cpu"), ""),
        ("torch-ddp", "bf16", None, ("cpu", "cpu"), "in builds with CUDA and NCCL only"),
        ("torch-ddp", "bf16", "12.8", ("cpu", "cpu"), ""),
        ("torch-ddp", "powersgd", None, ("cpu", "cpu"), ""),
        ("ddp", "hierarchical", None, ("cpu", "cpu"), ""),
        ("ddp", "hierarchical", "12.8", ("cuda:0", "cuda:1"), "replicas are on GPUs"),
    ],
)
def test_some_hooks_are_for_one_kind_of_build_or_device(
    implementation: str, hook: str, cuda: str | None, devices: tuple[str, str], words: str
) -> None:
    trial = trial_spec(implementation=implementation, comm_hook=hook, devices=devices)
    reason = hook_reason(trial, cuda=cuda)
    assert words in (reason or "")
    assert (reason is None) == (not words)
    if cuda is None:
        assert NO_GPU.unusable_reason(trial) == reason


def test_sharded_steps_have_no_loss_scale() -> None:
    trial = trial_spec(implementation="ddp-sharded", workload=replace(WORKLOAD, dtype="f16"))
    assert "bf16 has none" in (shards_reason(trial) or "")
    assert shards_reason(trial_spec(implementation="ddp-sharded")) is None


@pytest.mark.parametrize("implementation", ["ddp-sharded", "fsdp2"])
def test_shards_on_shm_need_the_collectives_of_a_newer_torch(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_spec(implementation=implementation, backend="shm")
    assert shards_reason(trial) is None
    monkeypatch.delattr(dist, "all_gather_single")
    assert shards_reason(trial) == f"{implementation} on shm needs torch 2.13 or later"
