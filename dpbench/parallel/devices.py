"""Converts the `device_ids` and `output_device` of users to torch devices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import torch

DeviceLike = int | str | torch.device


def parse_device(value: DeviceLike) -> torch.device:
    """One device from an int (a CUDA index), a string or a torch.device.

    "cuda" without an index is the current device, as in torch.

    Raises:
        TypeError: the value is a bool or no device.
        ValueError: the device is unknown, or this machine does not have that CUDA index.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str, torch.device)):
        raise TypeError(f"got {value!r} as a device, expected an int, a str or a torch.device")
    if isinstance(value, int):
        if value < 0:
            raise ValueError(f"got device {value}, expected an index of 0 or more")
        return _with_index(torch.device("cuda", value), value)
    try:
        device = torch.device(value)
    except RuntimeError as error:
        raise ValueError(f"got {value!r} as a device, expected e.g. 'cpu' or 'cuda:1'") from error
    return _with_index(device, value)


def _with_index(device: torch.device, written: DeviceLike) -> torch.device:
    if device.type == "cpu":
        # "cpu:0" and "cpu" are the same memory, but unequal for torch.
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f"got device {written!r}, expected a CPU or CUDA device")
    count = torch.cuda.device_count()
    index = device.index
    if index is None:  # device 0 is current before CUDA is initialized, which this must not do
        index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    if index >= count:
        raise ValueError(f"got device {written!r}, but this machine has {count} CUDA devices")
    return torch.device("cuda", index)


def parse_devices(device_ids: Sequence[DeviceLike] | None) -> tuple[torch.device, ...]:
    """The replicas' devices; None means every CUDA device.

    The CPU may be named several times: its replicas are threads that share one memory.

    Raises:
        TypeError, ValueError: see parse_device; also for an empty list, a CUDA device named
            twice, CPU and CUDA devices together, and None on a machine without CUDA devices.
    """
    if device_ids is None:
        count = torch.cuda.device_count()
        if not count:
            raise ValueError(
                "device_ids=None means all CUDA devices, but there is none visible "
                f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). "
                'For n replicas on the CPU give device_ids=["cpu"] * n.'
            )
        return tuple(torch.device("cuda", index) for index in range(count))
    if isinstance(device_ids, (str, bytes)) or not isinstance(device_ids, Iterable):
        raise TypeError(f"got device_ids={device_ids!r}, expected a list of devices")
    devices = tuple(parse_device(value) for value in device_ids)
    if not devices:
        raise ValueError("got device_ids=[], expected at least one device")
    for device in devices:
        if device.type == "cuda" and devices.count(device) > 1:
            raise ValueError(
                f"got {device} {devices.count(device)} times in device_ids={list(device_ids)!r}, "
                "expected each CUDA device once"
            )
    if len({device.type for device in devices}) > 1:
        raise ValueError(
            f"got device_ids={[str(device) for device in devices]}, expected CUDA devices only or "
            "the CPU only: GPUs would wait for the CPU; leave one kind out"
        )
    return devices
