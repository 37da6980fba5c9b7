"""The device of a process: its choice, its clock, its share of the cores, and its memory.

Every call of torch.cuda in `measure` is here, so that a test without a GPU can put a double that
records the calls in the place of `cuda`.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import psutil
import torch
from torch import cuda

from dpbench import units
from dpbench.specs import RunSpec


def peak_host_memory_bytes() -> int:
    """The largest resident set so far (getrusage; Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_device_memory(device: torch.device) -> tuple[int, int] | tuple[None, None]:
    """The largest allocation since the last reset, and the most memory that torch's allocator held,
    used or not; None on a device without a counter."""
    if device.type != "cuda":
        return None, None
    return cuda.max_memory_allocated(device), cuda.max_memory_reserved(device)


def peak_memory_words() -> str:
    """The peak of this process: on its current GPU if it uses one, and on the host."""
    host = f"{units.bytes_binary(peak_host_memory_bytes())} on the host"
    if not cuda.is_initialized():  # type: ignore[no-untyped-call]
        return host
    device = units.bytes_binary(cuda.max_memory_allocated())
    return f"{device} on {current_cuda_device()} and {host}"


def reset_peak_device_memory(device: torch.device) -> None:
    """Start a new peak for `peak_device_memory`."""
    if device.type == "cuda":
        cuda.reset_peak_memory_stats(device)


def memory_in_use_bytes(device: torch.device) -> int:
    """Bytes that tensors occupy on a GPU; on the CPU the resident set of the process."""
    if device.type == "cuda":
        return cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def synchronize(device: torch.device) -> None:
    """Wait until the device has no work left."""
    if device.type == "cuda":
        cuda.synchronize(device)


def clock_of(device: torch.device) -> Callable[[], Any]:
    """The clock for work on `device`: a call gives a reading, for `seconds_between`. On CUDA it is
    an event of the device's current stream."""
    return perf_counter if device.type == "cpu" else partial(_recorded_event, device)


def _recorded_event(device: torch.device) -> cuda.Event:
    event = cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(cuda.current_stream(device))
    return event


def seconds_between(start: Any, end: Any) -> float:
    """Seconds between two readings of a clock; of events only when the device is idle."""
    return float(end - start if isinstance(start, float) else start.elapsed_time(end) / 1e3)


def set_device(device: torch.device) -> None:
    """Make a GPU the current one of this process."""
    if device.type == "cuda":
        cuda.set_device(device)


def current_cuda_device() -> str:
    return f"cuda:{cuda.current_device()}"


def set_device_and_threads(settings: RunSpec, rank: int) -> torch.device:
    """Select this process's device and its share of the cores."""
    device = torch.device(settings.devices[rank])
    replicas_here = settings.group_size if settings.process_count == 1 else 1
    torch.set_num_threads(settings.threads_per_replica * replicas_here)
    set_device(device)
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
