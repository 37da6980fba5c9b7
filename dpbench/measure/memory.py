"""Peak memory of this process and of its device."""

from __future__ import annotations

import resource
import sys

import torch


def peak_host_memory_bytes() -> int:
    """The largest resident set so far (getrusage; Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_device_memory(device: torch.device) -> None:
    """Forgets earlier peaks, such as verification's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_device_memory_bytes(device: torch.device) -> int | None:
    """The largest allocation since the reset; None on a device without a counter."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def peak_reserved_memory_bytes(device: torch.device) -> int | None:
    """The most that torch's allocator held since the reset, in use or not."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
