"""Memory of a process and of a GPU, what NVML tells of it, and the transports of NCCL's log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpbench.launch.ranks import run_one_rank
from dpbench.measure import device, nccl_log
from dpbench.measure.device import (
    full_float32,
    memory_peaks,
    peak_host_memory_bytes,
    reset_peak_device_memory,
    set_tf32,
)
from dpbench.measure.nccl_log import nccl_transports, transports_in
from dpbench.measure.nvml import gpu_states
from dpbench.records.trial import INFINIBAND_UNUSED, GpuState
from tests.fake_nvml import FakeNvml, put_nvml
from tests.recording_cuda import GPU, RecordingCuda

MIB = 2**20


def grow_and_shrink(_: int) -> tuple[int, int, int]:
    """The peak before 300 MiB are held, with them, and when they are given back."""
    before = peak_host_memory_bytes()
    held = b"\1" * (300 * MIB)
    during = peak_host_memory_bytes()
    del held
    return before, during, peak_host_memory_bytes()


def test_the_peak_follows_what_is_held_and_stays() -> None:
    before, during, after = run_one_rank(grow_and_shrink, 60)
    assert 290 * MIB < during - before < 310 * MIB
    assert during <= after < during + 5 * MIB


def device_peaks(*devices: torch.device) -> tuple[int | None, int | None]:
    peaks = memory_peaks(*devices)
    return peaks.device_bytes, peaks.reserved_bytes


def test_the_peak_is_that_of_the_fullest_gpu_and_a_cpu_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, other = torch.device("cpu"), torch.device("cuda:2")
    cuda = RecordingCuda(allocated=100, peak={GPU: 900})
    monkeypatch.setattr(device, "cuda", cuda)
    reset_peak_device_memory(cpu)
    assert device_peaks(cpu) == (None, None)
    assert cuda.calls == []
    reset_peak_device_memory(GPU, other)
    assert device_peaks(GPU) == (100, 200)
    cuda.peak[other] = 700
    assert device_peaks(GPU, other) == (700, 1400)


def test_every_call_of_cuda_is_in_one_module() -> None:
    """So that a double in its place sees them all; data have those of parallel."""
    package = Path(device.__file__).parents[1]
    files = (
        path for name in ("measure", "training", "data") for path in (package / name).rglob("*.py")
    )
    calling = [path for path in files if re.search(r"torch\.cuda\.|import cuda", path.read_text())]
    assert calling == [Path(device.__file__)]


IMPORTS = """
import torch
asked = ("init", "is_available", "device_count", "current_device", "get_device_properties")
for name in (*asked, "current_stream", "synchronize", "set_device"):
    setattr(torch.cuda, name, None)
import dpbench.measure.trial, dpbench.measure.collective_operation, dpbench.training.rank
"""


def test_importing_what_ranks_run_asks_cuda_for_nothing() -> None:
    """The fork server imports it, and no fork of a process with a CUDA context can use a GPU."""
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


def products() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def test_tf32_covers_products_and_convolutions_and_the_verification_can_forbid_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.set_float32_matmul_precision("highest")
    set_tf32("f32")
    assert products() == ("highest", True)  # as a script without settings has it
    set_tf32("tf32")
    assert products() == ("high", True)
    full_float32()
    assert products() == ("highest", False)


def test_clock_power_and_reasons_are_those_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setattr(device, "cuda", RecordingCuda())
    put_nvml(nvml, monkeypatch)
    cool = GpuState(sm_clock_mhz=1755, slowdowns=(), processes=2)
    assert gpu_states(GPU) == (cool,)
    nvml.clock, nvml.reasons = 1080, 0x01 | 0x20 | 0x40 | 0x04  # idle is no slowdown
    (hot,) = gpu_states(GPU)
    assert (hot.sm_clock_mhz, hot.slowdowns) == (1080, ("power cap", "thermal"))
    nvml.broken = True
    assert gpu_states(GPU) == ()
    assert nvml.opened == 1
    assert gpu_states(torch.device("cpu")) == ()


INSIDE = """\
node1:412:431 [0] NCCL INFO NET/IB : No device found.
node1:412:431 [0] NCCL INFO Channel 00/24 : 0 1
node1:412:431 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node1:412:431 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct
"""
SOCKETS = "node1:9:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\n"
INFINIBAND = "node1:9:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/2/GDRDMA\n"


def test_a_log_names_the_transports_that_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_log, "INFINIBAND", tmp_path / "infiniband")
    assert transports_in(INSIDE) == ("P2P", "SHM")
    assert transports_in(INFINIBAND + SOCKETS) == ("NET/IB", "NET/Socket")
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    assert transports_in(SOCKETS) == (INFINIBAND_UNUSED,)


def test_nccl_logs_into_a_file_unless_the_user_has_asked_for_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    with nccl_transports("nccl") as transports:
        assert transports() == ()
        Path(os.environ["NCCL_DEBUG_FILE"]).write_text(INSIDE)
        assert transports() == ("P2P", "SHM")
    assert "NCCL_DEBUG" not in os.environ
    for backend, level in (("gloo", None), ("nccl", "WARN")):
        if level is not None:
            monkeypatch.setenv("NCCL_DEBUG", level)
        with nccl_transports(backend) as transports:
            assert "NCCL_DEBUG_FILE" not in os.environ
            assert transports() == ()
