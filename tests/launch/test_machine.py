"""What a machine can run."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dpbench.errors import UsageError
from dpbench.launch import machine
from dpbench.launch.machine import Machine, inspect_machine
from dpbench.records.environment import Accelerator
from dpbench.specs.traits import IMPLEMENTATIONS
from tests.builders import WORKLOAD, trial_spec

GPUS = tuple(Accelerator(index=index, name="H200", memory_bytes=2**37) for index in (0, 1))
TWO_GPUS = Machine(cores=8, gpus=GPUS, cuda="12.8", missing_backends=())
NO_GPU = Machine(cores=2, gpus=(), cuda=None, missing_backends=(("nccl", "no CUDA device"),))
OWN = ("cuda:0", "cuda:1")
SHARED = ("cuda:0", "cuda:0")
CPUS = ("cpu", "cpu")
NO_REPLICAS = "torch.nn.DataParallel has no CPU replicas: it would time the plain module"


@pytest.mark.parametrize(
    ("here", "implementation", "backend", "devices", "reason"),
    [
        (NO_GPU, "ddp", "gloo", CPUS, None),
        (NO_GPU, "dp", "threads", CPUS, None),
        (NO_GPU, "ddp", "shm", CPUS, None),
        (NO_GPU, "torch-dp", "threads", CPUS, NO_REPLICAS),
        (NO_GPU, "ddp", "nccl", CPUS, "no CUDA device"),
        (TWO_GPUS, "ddp", "nccl", OWN, None),
        (TWO_GPUS, "torch-dp", "threads", OWN, None),
        (TWO_GPUS, "ddp", "gloo", SHARED, None),
        (TWO_GPUS, "ddp", "nccl", CPUS, "nccl reduces CUDA tensors only"),
        (TWO_GPUS, "torch-ddp", "nccl", SHARED, "nccl needs a GPU of its own for every rank"),
        (TWO_GPUS, "ddp", "nccl2", SHARED, "nccl2 needs a GPU of its own for every rank"),
        (TWO_GPUS, "torch-dp", "threads", CPUS, NO_REPLICAS),
        (
            *(TWO_GPUS, "torch-dp", "threads", SHARED),
            "DataParallel needs a GPU of its own for every replica",
        ),
    ],
)
def test_a_trial_is_refused_for_one_reason_or_runs(
    here: Machine, implementation: str, backend: str, devices: tuple[str, ...], reason: str | None
) -> None:
    trial = trial_spec(implementation=implementation, backend=backend, devices=devices)
    assert here.unusable_reason(trial) == reason


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    traits = replace(IMPLEMENTATIONS["fabric"], requires="no_such_package")
    monkeypatch.setitem(IMPLEMENTATIONS, "fabric", traits)
    reason = "fabric needs a package: pip install no-such-package"
    assert NO_GPU.unusable_reason(trial_spec(implementation="fabric")) == reason


@pytest.mark.parametrize(
    ("implementation", "hook", "cuda", "devices", "words"),
    [
        ("ddp", "bf16", None, ("cpu", "cpu"), ""),
        ("torch-ddp", "bf16", None, ("cpu", "cpu"), "in builds with CUDA and NCCL only"),
        ("torch-ddp", "bf16", "12.8", ("cpu", "cpu"), ""),
        ("torch-ddp", "powersgd", None, ("cpu", "cpu"), ""),
    ],
)
def test_some_hooks_are_for_one_kind_of_build_or_device(
    implementation: str, hook: str, cuda: str | None, devices: tuple[str, str], words: str
) -> None:
    trial = trial_spec(implementation=implementation, comm_hook=hook, devices=devices)
    reason = replace(TWO_GPUS, cuda=cuda).unusable_reason(trial)
    assert words in (reason or "")
    assert (reason is None) == (not words)


def test_sharded_steps_have_no_loss_scale() -> None:
    trial = trial_spec(implementation="ddp-sharded", workload=replace(WORKLOAD, dtype="f16"))
    assert "bf16 has none" in (NO_GPU.unusable_reason(trial) or "")
    assert NO_GPU.unusable_reason(trial_spec(implementation="ddp-sharded")) is None


@pytest.mark.parametrize("implementation", ["ddp-sharded", "fsdp2"])
def test_shards_on_shm_need_the_collectives_of_a_newer_torch(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_spec(implementation=implementation, backend="shm")
    assert NO_GPU.unusable_reason(trial) is None
    monkeypatch.delattr(dist, "all_gather_single")
    assert NO_GPU.unusable_reason(trial) == f"{implementation} on shm needs torch 2.13 or later"


def test_a_batched_copy_needs_a_newer_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = trial_spec(implementation="torch-ddp", batched_copy="on")
    assert NO_GPU.unusable_reason(trial) is None
    monkeypatch.setattr(machine, "has_batched_copy", lambda: False)
    assert "batched_grad_copy from torch 2.13" in (NO_GPU.unusable_reason(trial) or "")
    assert NO_GPU.unusable_reason(trial_spec(implementation="torch-ddp")) is None


def test_one_of_several_ranks_may_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun every rank would run the whole sweep."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"rank 1 of 2 .* run it without a launcher"):
        inspect_machine()


class Library:
    """Stands for libnccl, as ctypes has it."""

    def __init__(self, name: str, mode: int) -> None:
        assert (name, mode) == ("libnccl.so.2", os.RTLD_NOLOAD)

    def ncclGetVersion(self, code: Any) -> None:  # noqa: N802 - NCCL's name
        ctypes.cast(code, ctypes.POINTER(ctypes.c_int))[0] = 23_203


def test_the_version_of_nccl_is_that_of_the_library_in_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    assert machine.nccl_version() == "2.27.5"  # linked into torch
    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert machine.nccl_version() == "2.32.3"
