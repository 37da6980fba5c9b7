"""Devices: how users name them, and torch.cuda, which this package calls through `cuda` only.

A test without a GPU puts a double that records the calls in its place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.cuda.comm
from torch import Tensor

DeviceLike = int | str | torch.device
cuda: Any = torch.cuda


def parse_device(value: DeviceLike) -> torch.device:
    """One device from an int (a CUDA index), a string or a torch.device.

    "cuda" without an index is the current device, as in torch.

    Raises:
        TypeError: the value is a bool or no device.
        ValueError: the device is unknown, or this machine does not have that CUDA index.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str, torch.device)):
        raise TypeError(f"got {value!r} as a device, expected an int, a str or a torch.device")
    try:
        device = torch.device(f"cuda:{value}" if isinstance(value, int) else value)
    except RuntimeError as error:
        raise ValueError(f"got {value!r} as a device, expected e.g. 'cpu' or 'cuda:1'") from error
    if device.type == "cpu":
        return torch.device("cpu")  # "cpu:0" is the same memory, but unequal for torch
    if device.type != "cuda":
        raise ValueError(f"got device {value!r}, expected a CPU or CUDA device")
    if device.index is None:
        device = current_device()
    if device.index >= (count := cuda.device_count()):
        raise ValueError(f"got device {value!r}, but this machine has {count} CUDA devices")
    return device


def parse_devices(device_ids: Sequence[DeviceLike] | None) -> tuple[torch.device, ...]:
    """The replicas' devices; None means every CUDA device.

    The CPU may be named several times: its replicas are threads that share one memory.

    Raises:
        TypeError, ValueError: see parse_device; also for an empty list, a CUDA device named
            twice, CPU and CUDA devices together, and None on a machine without CUDA devices.
    """
    if device_ids is None:
        device_ids = range(cuda.device_count())
        if not device_ids:
            raise ValueError(
                "device_ids=None means all CUDA devices, but there is none visible "
                f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). "
                'For n replicas on the CPU give device_ids=["cpu"] * n.'
            )
    if isinstance(device_ids, str) or not isinstance(device_ids, Sequence):
        raise TypeError(f"got device_ids={device_ids!r}, expected a list of devices")
    devices = tuple(parse_device(value) for value in device_ids)
    on_cuda = [device for device in devices if device.type == "cuda"]
    if not devices or len(set(on_cuda)) < len(on_cuda) or len(on_cuda) not in (0, len(devices)):
        raise ValueError(
            f"got device_ids={[str(device) for device in devices]}, expected CUDA devices, each "
            "once, or the CPU only, any number of times"
        )
    return devices


def current_device() -> torch.device:
    """The current CUDA device: device 0 before CUDA is initialized, which this does not do."""
    return torch.device("cuda", cuda.current_device() if cuda.is_initialized() else 0)


def synchronize(*devices: torch.device) -> None:
    """Wait until the CUDA devices among these have no work left."""
    for device in devices:
        if device.type == "cuda":
            cuda.synchronize(device)


@cache
def side_stream(device: torch.device) -> torch.Stream:
    """A stream for what is copied to a CUDA device beside computation. Always the same one, as the
    allocator gives memory that it holds for a stream to no other."""
    stream: torch.Stream = cuda.Stream(device=device)
    return stream


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a CUDA device, for the current stream of the device.

    The caller waits for this copy, and not for computation: afterwards it may write to the tensor.
    """
    stream, current = side_stream(device), cuda.current_stream(device)
    with cuda.stream(stream):
        copied = tensor.to(device)
    current.wait_stream(stream)
    # The memory belongs to the side stream: the allocator must know that another one reads it.
    copied.record_stream(current)
    return copied


def pinned(numel: int, dtype: torch.dtype) -> Tensor:
    """A flat tensor in pinned memory of the host, its values undefined."""
    return torch.empty(numel, dtype=dtype, device="cpu", pin_memory=True)
