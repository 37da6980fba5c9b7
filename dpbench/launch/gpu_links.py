"""The links between NVIDIA GPUs, from NVML (the extra `nvml`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpbench.measure.nvml import open_gpus

COMMON_ANCESTORS = {0: "board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""The last component that PCIe traffic between two GPUs passes, by NVML's number, in the words of
nvidia-smi topo."""


def gpu_links(uuids: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The link from each GPU to each: NVLink, also through a switch, or the part of PCIe that they
    share. () for a single GPU, and without NVML; see `open_gpus`."""
    opened = open_gpus(*uuids) if len(uuids) > 1 else None
    if opened is None:
        return ()
    nvml, handles = opened

    def link(one: Any, other: Any) -> str:
        if one is other:
            return "X"
        status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status == nvml.NVML_P2P_STATUS_OK:
            return "NVLink"
        ancestor = nvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
        return COMMON_ANCESTORS.get(ancestor, f"NVML topology {ancestor}")

    try:
        return tuple(tuple(link(one, other) for other in handles) for one in handles)
    except nvml.NVMLError:
        return ()
