"""What a machine can run, and what else runs on it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dpbench.errors import UsageError
from dpbench.launch import machine
from dpbench.launch.machine import Machine, inspect_machine
from dpbench.launch.trial_runner import LoadMeter
from dpbench.records.environment import Accelerator, core_numbers
from dpbench.specs.traits import IMPLEMENTATIONS
from tests.builders import HERE, WORKLOAD, configuration
from tests.fake_nvml import FakeNvml, put_nvml

GPUS = tuple(Accelerator(index=index, name="H200", memory_bytes=2**37) for index in (0, 1))
TWO_GPUS = Machine(environment=replace(HERE, cores=8, accelerators=GPUS, cuda="12.8"))
NO_GPU = Machine(environment=HERE, missing_backends={"nccl": "no CUDA device"})
OWN = ("cuda:0", "cuda:1")
SHARED = ("cuda:0", "cuda:0")
CPUS = ("cpu", "cpu")
NO_REPLICAS = "torch.nn.DataParallel has no CPU replicas: it would time the plain module"


SCRIPT = {"workload": replace(WORKLOAD, script=("train.py",))}
F16, GRAPHED = replace(WORKLOAD, dtype="f16"), replace(WORKLOAD, compile="max-autotune")


@pytest.mark.parametrize(
    ("here", "implementation", "backend", "devices", "changes", "reason"),
    [
        (NO_GPU, "ddp", "gloo", CPUS, {}, None),
        (NO_GPU, "dp", "threads", CPUS, {}, None),
        (NO_GPU, "ddp", "shm", CPUS, {}, None),
        (NO_GPU, "torch-dp", "threads", CPUS, {}, NO_REPLICAS),
        (NO_GPU, "ddp", "nccl", CPUS, {}, "no CUDA device"),
        (TWO_GPUS, "ddp", "nccl", OWN, {}, None),
        (TWO_GPUS, "torch-dp", "threads", OWN, {}, None),
        (TWO_GPUS, "ddp", "gloo", SHARED, {}, None),
        (TWO_GPUS, "ddp", "nccl", CPUS, {}, "nccl reduces CUDA tensors only"),
        (TWO_GPUS, "torch-ddp", "nccl", SHARED, {}, "nccl needs a GPU of its own for every rank"),
        (TWO_GPUS, "ddp", "nccl2", SHARED, {}, "nccl2 needs a GPU of its own for every rank"),
        (TWO_GPUS, "torch-dp", "threads", CPUS, {}, NO_REPLICAS),
        (TWO_GPUS, "torch-dp", "threads", SHARED, {}, "DataParallel needs a GPU of its own for ev"),
        (TWO_GPUS, "script", "own", OWN, SCRIPT, None),
        (TWO_GPUS, "script", "own", SHARED, SCRIPT, "a script takes the GPU of its LOCAL_RANK"),
        (TWO_GPUS, "independent", "none", SHARED, SCRIPT, None),
        (NO_GPU, "ddp", "gloo", CPUS, {"comm_hook": "bf16"}, None),
        (NO_GPU, "torch-ddp", "gloo", CPUS, {"comm_hook": "bf16"}, "torch's DistributedDataParall"),
        (TWO_GPUS, "torch-ddp", "gloo", CPUS, {"comm_hook": "bf16"}, None),
        (NO_GPU, "torch-ddp", "gloo", CPUS, {"comm_hook": "powersgd"}, None),
        (NO_GPU, "ddp-sharded", "gloo", CPUS, {}, None),
        (NO_GPU, "ddp", "gloo", CPUS, {"workload": F16}, "got dtype f16, in which no CPU"),
        (TWO_GPUS, "ddp", "nccl", OWN, {"workload": F16}, None),
        (TWO_GPUS, "ddp-sharded", "nccl", OWN, {"workload": F16}, "got dtype f16, whose loss scal"),
        (TWO_GPUS, "ddp", "nccl", OWN, {"workload": GRAPHED}, None),
        (
            *(TWO_GPUS, "ddp", "nccl", OWN, {"workload": GRAPHED, "accumulate": 2}),
            "got compile max-autotune, whose CUDA graphs",
        ),
    ],
)
def test_a_trial_is_refused_for_one_reason_or_runs(
    here: Machine,
    implementation: str,
    backend: str,
    devices: tuple[str, ...],
    changes: dict[str, Any],
    reason: str | None,
) -> None:
    changes |= {"implementation": implementation, "backend": backend, "devices": devices}
    settings = configuration(**changes)
    found = here.unusable_reason(settings)
    assert found is None if reason is None else (found or "").startswith(reason)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    traits = replace(IMPLEMENTATIONS["fabric"], requires="no_such_package")
    monkeypatch.setitem(IMPLEMENTATIONS, "fabric", traits)
    reason = "fabric needs a package: pip install no-such-package"
    assert NO_GPU.unusable_reason(configuration(implementation="fabric")) == reason


def test_what_needs_a_newer_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sharded = [configuration(implementation=one, backend="shm") for one in ("ddp-sharded", "fsdp2")]
    copying = configuration(implementation="torch-ddp", batched_copy="on")
    assert [*map(NO_GPU.unusable_reason, (*sharded, copying))] == [None] * 3
    monkeypatch.delattr(dist, "all_gather_single")
    monkeypatch.setattr(machine, "has_batched_copy", lambda: False)
    for settings in (*sharded, copying):
        assert "torch 2.13" in (NO_GPU.unusable_reason(settings) or "")


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


def test_each_pair_of_gpus_has_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    uuids, known, broken = ["0", "1", "2"], FakeNvml(), FakeNvml()
    put_nvml(known, monkeypatch)
    assert machine.gpu_links(uuids) == (
        ("X", "NVLink", "SYS"),
        ("NVLink", "X", "SYS"),
        ("SYS", "SYS", "X"),
    )
    known.ancestor = 60
    assert machine.gpu_links(uuids[1:]) == (("X", "NVML topology 60"), ("NVML topology 60", "X"))
    assert machine.gpu_links(uuids[:1]) == ()
    broken.broken = True
    for nvml in (broken, None):
        put_nvml(nvml, monkeypatch)
        assert machine.gpu_links(uuids) == ()


BURN = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]


def test_a_process_that_computes_meanwhile_is_seen() -> None:
    with subprocess.Popen(BURN, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        meter = LoadMeter()
        time.sleep(1.0)
        found = meter.load()
        other.kill()
    assert found is not None
    assert found.cores == len(core_numbers())
    assert found.during > 0.3
