"""The state of NVIDIA GPUs, from NVML (the extra `nvml`)."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch

from dpbench.measure.device import gpu_uuid
from dpbench.records.trial import GpuState

SLOWDOWNS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal",
    0x40: "thermal",
    0x80: "power brake",
}
"""Reasons for a clock below the GPU's highest, by the bits of nvmlClocksEventReasons."""


@cache
def open_gpus(*uuids: str) -> tuple[Any, list[Any]] | None:
    """The module pynvml and a handle for each GPU; None without NVML, or if it does not know one of
    them, as for a MIG slice. It stays open until the process ends.

    GPUs are given by UUID, because NVML's indices ignore CUDA_VISIBLE_DEVICES.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        return nvml, [nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]
    except nvml.NVMLError:
        return None


def gpu_states(device: torch.device) -> tuple[GpuState, ...]:
    """The present state of a GPU; () for another device, and where NVML does not tell.

    The first call of a process opens NVML, which takes far longer than the others.
    """
    uuid = gpu_uuid(device)
    opened = None if uuid is None else open_gpus(uuid)
    if opened is None:
        return ()
    nvml, (gpu,) = opened
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
        return (
            GpuState(
                sm_clock_mhz=nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
                slowdowns=tuple(
                    dict.fromkeys(name for bit, name in SLOWDOWNS.items() if reasons & bit)
                ),
                processes=len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
            ),
        )
    except nvml.NVMLError:
        return ()
