"""The links between NVIDIA GPUs, from NVML (the extra `nvml`)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch


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
