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


def peak_device_memory(device: torch.device) -> tuple[int, int] | tuple[None, None]:
    """The largest allocation so far, and the most memory that torch's allocator held, used or not;
    None on a device without a counter."""
    if device.type != "cuda":
        return None, None
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


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
