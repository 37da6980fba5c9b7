"""The device of a process: its choice, its share of the cores, and its peak memory."""

from __future__ import annotations

import resource
import sys

import torch

from dpbench.specs.training import RunSpec


def peak_host_memory_bytes() -> int:
    """The largest resident set so far (getrusage; Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_device_memory(device: torch.device) -> None:
    """Forget earlier peaks, such as that of verification."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_device_memory_bytes(device: torch.device) -> int | None:
    """The largest allocation since the reset; None on a device without a counter."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def peak_reserved_memory_bytes(device: torch.device) -> int | None:
    """The most memory that torch's allocator held since the reset, used or not."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None


def settle_on_device(settings: RunSpec, rank: int) -> torch.device:
    """Select this process's device and its share of the cores."""
    device = torch.device(settings.devices[rank])
    replicas_here = settings.group_size if settings.process_count == 1 else 1
    torch.set_num_threads(settings.threads_per_replica * replicas_here)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Make the process's first calls of the vector math library from a single thread. On a busy
    # machine the first step of Adadelta was seen to differ between ranks by 1e-4, in the half of
    # the first parameter that one thread computes, though gradients were the same (torch 2.13 with
    # MKL). Most likely several threads that call the library first, at once, are the cause: the
    # difference was not seen again after a call from one thread.
    for dtype in (torch.float32, torch.float64):
        few = torch.ones(8, dtype=dtype, device="cpu")  # too few to be shared among threads
        for function in (torch.sqrt, torch.exp, torch.log, torch.tanh):
            function(few)
    return device
