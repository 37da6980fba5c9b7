"""Converts the `device_ids` and `output_device` of users to torch devices."""

from __future__ import annotations

import os
from collections.abc import Sequence

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
    try:
        device = torch.device(f"cuda:{value}" if isinstance(value, int) else value)
    except RuntimeError as error:
        raise ValueError(f"got {value!r} as a device, expected e.g. 'cpu' or 'cuda:1'") from error
    if device.type == "cpu":
        return torch.device("cpu")  # "cpu:0" is the same memory, but unequal for torch
    if device.type != "cuda":
        raise ValueError(f"got device {value!r}, expected a CPU or CUDA device")
    count, index = torch.cuda.device_count(), device.index
    if index is None:  # device 0 is current before CUDA is initialized, which this must not do
        index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    if index >= count:
        raise ValueError(f"got device {value!r}, but this machine has {count} CUDA devices")
    return torch.device("cuda", index)


def parse_devices(device_ids: Sequence[DeviceLike] | None) -> tuple[torch.device, ...]:
    """The replicas' devices; None means every CUDA device.

    The CPU may be named several times: its replicas are threads that share one memory.

    Raises:
        TypeError, ValueError: see parse_device; also for an empty list, a CUDA device named
            twice, CPU and CUDA devices together, and None on a machine without CUDA devices.
    """
    if device_ids is None:
        device_ids = range(torch.cuda.device_count())
        if not device_ids:
            raise ValueError(
                "device_ids=None means all CUDA devices, but there is none visible "
                f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). "
                'For n replicas on the CPU give device_ids=["cpu"] * n.'
            )
    if isinstance(device_ids, str) or not isinstance(device_ids, Sequence):
        raise TypeError(f"got device_ids={device_ids!r}, expected a list of devices")
    devices = tuple(parse_device(value) for value in device_ids)
    cuda = [device for device in devices if device.type == "cuda"]
    if not devices or len(set(cuda)) < len(cuda) or len(cuda) not in (0, len(devices)):
        raise ValueError(
            f"got device_ids={[str(device) for device in devices]}, expected CUDA devices, each "
            "once, or the CPU only, any number of times"
        )
    return devices
