"""What a machine can run, and asking it from a process that may be thrown away."""

from __future__ import annotations

import os
import sys
import time

import pytest

from dpbench.errors import LaunchError, UsageError
from dpbench.launch import machine
from dpbench.launch.machine import Machine, in_child, inspect_machine
from dpbench.records.environment import Accelerator
from tests.builders import trial_spec

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


def test_one_of_several_ranks_may_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun every rank would run the whole sweep."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"rank 1 of 2 .* run it without a launcher"):
        inspect_machine()


def answer() -> dict[str, object]:
    return {"pid": os.getpid(), "gpus": GPUS, "preloaded": "torch._dynamo" in sys.modules}


def hangs() -> None:
    time.sleep(600)


def test_a_child_returns_values_from_a_process_of_its_own() -> None:
    answered = in_child(answer)
    assert answered["gpus"] == GPUS
    assert answered["pid"] != os.getpid()


def test_a_probe_that_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PROBE_SECONDS", 0.3)
    with pytest.raises(LaunchError, match="a child process failed: no result after 300 ms"):
        in_child(hangs)
