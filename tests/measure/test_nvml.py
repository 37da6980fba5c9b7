"""The state of a GPU, read from a made-up NVML."""

from __future__ import annotations

import pytest
import torch

from dpbench.measure import device
from dpbench.measure.nvml import gpu_states
from dpbench.records.trial import GpuState
from tests.fake_nvml import FakeNvml, put_nvml
from tests.recording_cuda import GPU, RecordingCuda


def test_clock_power_and_reasons_are_those_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setattr(device, "cuda", RecordingCuda())
    put_nvml(nvml, monkeypatch)
    cool = GpuState(sm_clock_mhz=1755, power_watts=312.5, slowdowns=(), processes=2)
    assert gpu_states(GPU) == (cool,)
    nvml.clock, nvml.reasons = 1080, 0x01 | 0x20 | 0x40 | 0x04  # idle is no slowdown
    (hot,) = gpu_states(GPU)
    assert (hot.sm_clock_mhz, hot.slowdowns) == (1080, ("power cap", "thermal"))
    nvml.broken = True
    assert gpu_states(GPU) == ()
    assert nvml.opened == 1
    assert gpu_states(torch.device("cpu")) == ()
