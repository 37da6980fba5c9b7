"""The device of a process: its choice, its clock, its share of the cores, its memory, and the
precision of its steps.

Every call of torch.cuda in `measure` and `training` is here or in `parallel.devices`, so that a
test without a GPU can put a double that records the calls in the place of `cuda`. A process has one
device, or one for each of the replicas that it drives (dp): then the first holds the samples and
the module.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import cuda
from torch.amp.grad_scaler import GradScaler

from dpbench import units
from dpbench.records.trial import MemoryPeaks

if TYPE_CHECKING:
    from dpbench.specs import ParallelSpec


def peak_host_memory_bytes() -> int:
    """The largest resident set so far; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_peaks(*devices: torch.device) -> MemoryPeaks:
    """The peaks of this process so far; of its devices since the last reset."""
    host = peak_host_memory_bytes()
    if devices[0].type != "cuda":
        return MemoryPeaks(host_bytes=host)
    return MemoryPeaks(
        host_bytes=host,
        device_bytes=max(map(cuda.max_memory_allocated, devices)),
        reserved_bytes=max(map(cuda.max_memory_reserved, devices)),
    )


def peak_memory_words() -> str:
    """The peak of this process: on its current GPU if it uses one, and on the host."""
    host = f"{units.bytes_binary(peak_host_memory_bytes())} on the host"
    if not cuda.is_initialized():  # type: ignore[no-untyped-call]
        return host
    device = units.bytes_binary(cuda.max_memory_allocated())
    return f"{device} on cuda:{cuda.current_device()} and {host}"


def reset_peak_device_memory(*devices: torch.device) -> None:
    """Start new peaks of the devices for `memory_peaks`."""
    for device in _gpus(devices):
        cuda.reset_peak_memory_stats(device)


def forked_random(*devices: torch.device) -> AbstractContextManager[None]:
    """A context after which torch's random numbers go on as before it, on the CPU and on these
    devices."""
    return torch.random.fork_rng(_gpus(devices))


def random_states(*devices: torch.device) -> dict[str, Any]:
    """The states of torch's random number generators, for `set_random_states`."""
    states = {str(device): cuda.get_rng_state(device) for device in _gpus(devices)}
    return {"cpu": torch.get_rng_state(), "cuda": states}


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set the generators to earlier `random_states`."""
    torch.set_rng_state(states["cpu"])
    for device, state in states["cuda"].items():
        cuda.set_rng_state(state, device)


def _gpus(devices: Sequence[torch.device]) -> list[torch.device]:
    return [device for device in devices if device.type == "cuda"]


def clock_of(device: torch.device) -> Callable[[], Any]:
    """The clock for work on `device`: a call gives a reading, for `seconds_between`. On CUDA it is
    an event of the device's current stream."""

    def recorded_event() -> cuda.Event:
        event = cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(cuda.current_stream(device))
        return event

    return perf_counter if device.type == "cpu" else recorded_event


def seconds_between(start: Any, end: Any) -> float:
    """Seconds between two readings of a clock; of events only when the device is idle."""
    return float(end - start if isinstance(start, float) else start.elapsed_time(end) / 1e3)


def set_device(device: torch.device) -> None:
    """Make a GPU the current one of this process."""
    if device.type == "cuda":
        cuda.set_device(device)


def gpu_count() -> int:
    """Number of visible GPUs."""
    return cuda.device_count()


def gpu_uuid(device: torch.device) -> str | None:
    """The UUID of a GPU; None for another device."""
    return str(cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def set_devices_and_threads(spec: ParallelSpec, rank: int) -> tuple[torch.device, ...]:
    """Select this process's devices and its share of the cores; returns the devices."""
    names = spec.devices if spec.process_count == 1 else spec.devices[rank : rank + 1]
    devices = tuple(map(torch.device, names))
    torch.set_num_threads(spec.threads * len(devices))
    set_device(devices[0])
    # Make the process's first calls of the vector math library from a single thread. On a busy
    # machine the first step of Adadelta was seen to differ between ranks by 1e-4, in the half of
    # the first parameter that one thread computes, though gradients were the same (torch 2.13 with
    # MKL). Most likely several threads that call the library first, at once, are the cause: the
    # difference was not seen again after a call from one thread.
    for dtype in (torch.float32, torch.float64):
        few = torch.ones(8, dtype=dtype, device="cpu")  # too few to be shared among threads
        for function in (torch.sqrt, torch.exp, torch.log, torch.tanh):
            function(few)
    return devices


HALF_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def set_tf32(dtype: str) -> None:
    """Use TF32 in all float32 products on CUDA if `dtype` is tf32. For f32 torch's defaults stay:
    TF32 in cuDNN's convolutions, float32 elsewhere."""
    if dtype == "tf32":
        torch.set_float32_matmul_precision("high")


def full_float32() -> None:
    """Forbid TF32, also in convolutions, for the rest of the process."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """The context for a forward pass and its loss."""
    half = HALF_DTYPES.get(dtype)
    return nullcontext() if half is None else torch.autocast(device.type, half)


def loss_scaler(
    device: torch.device, dtype: str, process_group: dist.ProcessGroup | None = None
) -> GradScaler:
    """The scale of the loss for steps in `dtype`, whose parameters, gradients and reduction stay
    float32; it is 1 except for float16.

    bfloat16 has float32's range; float16 does not, so its loss is scaled up before the backward
    pass, and a step whose gradients overflow is skipped: on all ranks alike, or their parameters
    and scales would diverge forever. To decide, torch's scaler waits for the device once per step.
    A reduction of gradients spreads an overflow on one rank to all. Where gradients stay local, the
    ranks of `process_group` skip a step together if any of them has to: torch's scaler for sharded
    gradients lets them decide by a collective of one number.
    """
    if dtype == "f16" and process_group is not None:
        # Imported here only: it loads all of torch's FSDP, which takes a second.
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(device.type, process_group=process_group)
    return GradScaler(device.type, enabled=dtype == "f16")
