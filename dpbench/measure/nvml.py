"""Readings of NVIDIA GPUs from NVML (the extra `nvml`): energy, clocks, links between them.

Power multiplied by time does not replace energy counters: NVML's power is an average over a window
of its own, and says little about a shorter one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

SM_CLOCK = 1
"""NVML_CLOCK_SM."""


class DeviceMeter:
    """Reads the counters of some GPUs; a reading is None without NVML, or if a device does not
    support it."""

    def __init__(self, devices: Iterable[str]) -> None:
        """`devices` are torch's names; each is counted once, and the CPU has no counter."""
        self._devices = [torch.device(name) for name in dict.fromkeys(devices)]
        on_gpus = all(device.type == "cuda" for device in self._devices)
        self._nvml = open_nvml() if on_gpus else None

    def joules(self) -> float | None:
        """Energy of all devices since their driver was loaded; only differences have a meaning."""
        millijoules = self._read("nvmlDeviceGetTotalEnergyConsumption")
        return sum(millijoules) / 1e3 if millijoules else None

    def clock_hertz(self) -> float | None:
        """Current clock of the streaming multiprocessors, of the slowest device."""
        megahertz = self._read("nvmlDeviceGetClockInfo", SM_CLOCK)
        return min(megahertz) * 1e6 if megahertz else None

    def _read(self, function: str, *arguments: int) -> list[float]:
        """One reading per device; none if they cannot be read."""
        if self._nvml is None:
            return []
        read = getattr(self._nvml, function)
        try:
            return [read(handle_of(self._nvml, device), *arguments) for device in self._devices]
        except self._nvml.NVMLError:  # such as NotSupported, before Volta and of a MIG slice
            return []


def open_nvml() -> Any | None:
    """nvidia-ml-py, ready for use; None if it or its driver's library is missing."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def handle_of(nvml: Any, device: torch.device) -> Any:
    """NVML's handle, found by UUID: NVML's indices ignore CUDA_VISIBLE_DEVICES."""
    uuid = torch.cuda.get_device_properties(device).uuid
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


COMMON_ANCESTORS = {0: "board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""The last component that PCIe traffic between two GPUs passes, by NVML's number, in the words of
nvidia-smi topo."""


def gpu_links(devices: Sequence[torch.device]) -> tuple[tuple[str, ...], ...]:
    """The link from each device to each: NVLink, also through a switch, or the part of PCIe that
    they share. () for a single device, without NVML, or if it does not tell, as for a MIG slice."""
    nvml = open_nvml()
    if nvml is None or len(devices) == 1:
        return ()

    def link(one: Any, other: Any) -> str:
        if one is other:
            return "X"
        status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status == nvml.NVML_P2P_STATUS_OK:
            return "NVLink"
        ancestor = nvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
        return COMMON_ANCESTORS.get(ancestor, f"NVML topology {ancestor}")

    try:
        handles = [handle_of(nvml, device) for device in devices]
        return tuple(tuple(link(one, other) for other in handles) for one in handles)
    except nvml.NVMLError:
        return ()
