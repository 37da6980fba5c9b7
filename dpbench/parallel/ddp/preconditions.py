"""Checks of DistributedDataParallel's arguments, before any communication."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel as TorchDdp
from torch.nn.parameter import is_lazy

from dpbench.parallel.devices import DeviceLike, parse_device
from dpbench.parallel.groups import member_group


def refuse(arguments: Mapping[str, Any]) -> None:
    """Check the arguments of torch's class that this one does not offer.

    Raises:
        ValueError: one of them is set.
        TypeError: neither class has such an argument.
    """
    for name, value in arguments.items():
        if name not in inspect.signature(TorchDdp).parameters:
            raise TypeError(f"DistributedDataParallel got an unexpected keyword argument {name!r}")
        if value:
            raise ValueError(
                f"got {name}={value!r}, which dpbench's DistributedDataParallel does not offer"
            )


def refuse_lazy(module: nn.Module) -> None:
    """
    Raises:
        RuntimeError: the module has parameters or buffers without a shape.
    """
    if any(map(is_lazy, chain(module.parameters(), module.buffers()))):
        raise RuntimeError(
            "Modules with uninitialized parameters can't be used with `DistributedDataParallel`. "
            "Run a dummy forward pass to correctly initialize the modules"
        )


def chosen_group(group: dist.ProcessGroup | None, mesh: DeviceMesh | None) -> dist.ProcessGroup:
    """The group of either argument, or the default one; this process must be a member."""
    if mesh is not None:
        if group is not None:
            raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
        if mesh.ndim != 1:
            raise RuntimeError(f"Only 1D device mesh is supported, but got {mesh}.")
        group = mesh.get_group(mesh_dim=0)
    return member_group(group, "DistributedDataParallel")


def input_device(module: nn.Module, device_ids: Sequence[DeviceLike] | None) -> torch.device | None:
    """The device to move inputs to; None leaves them where they are.

    Raises:
        ValueError: there are several device ids, or one that is not the module's GPU.
    """
    if not device_ids:
        return None
    if len(device_ids) > 1:
        raise ValueError(
            "device_ids can only be None or contain a single element, but got "
            f"{list(device_ids)!r}; start one process per device."
        )
    device = parse_device(device_ids[0])
    devices = {parameter.device for parameter in module.parameters()}
    if device.type == "cpu" or devices != {device}:
        raise ValueError(
            "DistributedDataParallel's device_ids only work with a module on that one GPU, but got "
            f"device_ids {list(device_ids)!r} and parameters on {sorted(map(str, devices))}."
        )
    return device
