"""Memory of a process and of a GPU. Peaks of a process need a process of their own each time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dpbench.launch.machine import in_child
from dpbench.measure import device
from dpbench.measure.device import (
    memory_in_use_bytes,
    peak_device_memory,
    peak_host_memory_bytes,
    reset_peak_device_memory,
)
from tests.measure.recording_cuda import GPU, RecordingCuda

MIB = 2**20


def grow_and_shrink() -> tuple[int, int, int]:
    """The peak before 300 MiB are held, with them, and when they are given back."""
    before = peak_host_memory_bytes()
    held = b"\1" * (300 * MIB)
    during = peak_host_memory_bytes()
    del held
    return before, during, peak_host_memory_bytes()


def test_the_peak_follows_what_is_held_and_stays() -> None:
    before, during, after = in_child(grow_and_shrink)
    assert 290 * MIB < during - before < 310 * MIB
    assert during <= after < during + 5 * MIB


def test_memory_of_a_gpu_is_what_its_tensors_take(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = RecordingCuda(allocated=100, peak=900)
    monkeypatch.setattr(device, "cuda", cuda)
    reset_peak_device_memory(GPU)
    assert peak_device_memory(GPU) == (100, 200)
    assert memory_in_use_bytes(GPU) == 100
    assert cuda.calls == ["reset_peak cuda:1", "read_peak cuda:1", "memory_allocated cuda:1"]


def test_a_cpu_has_no_counter_of_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), RecordingCuda()
    monkeypatch.setattr(device, "cuda", cuda)
    reset_peak_device_memory(cpu)
    assert peak_device_memory(cpu) == (None, None)
    assert cuda.calls == []


def test_every_call_of_cuda_in_a_trial_is_in_one_module() -> None:
    """So that a double in its place sees them all; scripts have a clock of their own."""
    folder = Path(device.__file__).parent
    calling = {path.name for path in folder.glob("*.py") if "torch.cuda." in path.read_text()}
    assert calling <= {"device.py"}
