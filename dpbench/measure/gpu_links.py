"""How the GPUs of a host reach one another, as NVML knows it (the extra `nvml`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dpbench.measure.energy import handle_of, open_nvml

ITSELF = "X"
NVLINK = "NVLink"
_COMMON_ANCESTORS = {
    "NVML_TOPOLOGY_INTERNAL": "board",
    "NVML_TOPOLOGY_SINGLE": "PIX",
    "NVML_TOPOLOGY_MULTIPLE": "PXB",
    "NVML_TOPOLOGY_HOSTBRIDGE": "PHB",
    "NVML_TOPOLOGY_NODE": "NODE",
    "NVML_TOPOLOGY_SYSTEM": "SYS",
}
"""By the last thing that PCIe traffic passes, in the words of nvidia-smi topo."""


def gpu_links(devices: Sequence[torch.device]) -> tuple[tuple[str, ...], ...]:
    """For each of the devices its way to each: NVLink, also through a switch, else which part of
    PCIe they share. () for one alone, without NVML, or where it does not tell, as of a slice."""
    nvml = open_nvml()
    if nvml is None or len(devices) == 1:
        return ()
    try:
        handles = [handle_of(nvml, device) for device in devices]
        return tuple(tuple(_way(nvml, one, other) for other in handles) for one in handles)
    except nvml.NVMLError:
        return ()


def _way(nvml: Any, one: Any, other: Any) -> str:
    if one is other:
        return ITSELF
    status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    if status == nvml.NVML_P2P_STATUS_OK:
        return NVLINK
    ancestor = nvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
    known = {getattr(nvml, name): word for name, word in _COMMON_ANCESTORS.items()}
    return known.get(ancestor, f"NVML topology {ancestor}")
