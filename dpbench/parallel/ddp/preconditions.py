"""Checks of DistributedDataParallel's module and arguments, before any communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from dpbench.parallel.devices import DeviceLike, parse_device
from dpbench.parallel.flat import is_expanded
from dpbench.parallel.groups import member_group

NOT_OFFERED: dict[str, tuple[Any, str]] = {
    "dim": (0, "each rank has its own batch already"),
    "check_reduction": (False, "torch deprecated it; an unfinished reduction always raises"),
    "delay_all_reduce_named_params": (None, "every parameter is reduced with its bucket"),
    "param_to_hook_all_reduce": (None, "every parameter is reduced with its bucket"),
    "skip_all_reduce_unused_params": (False, "every bucket is reduced"),
    "mixed_precision": (None, "use torch.autocast, or a comm hook that compresses gradients"),
}
"""Arguments of torch's class that this one lacks: their default and what to use instead."""


def refuse(arguments: Mapping[str, Any]) -> None:
    """Check the arguments that are in torch's signature only.

    Raises:
        ValueError: one of them is not at its default.
        TypeError: neither class has such an argument.
    """
    for name, value in arguments.items():
        if name == "batched_grad_copy":
            continue  # gradients are always copied together
        if name not in NOT_OFFERED:
            raise TypeError(f"DistributedDataParallel got an unexpected keyword argument {name!r}")
        default, remedy = NOT_OFFERED[name]
        if value != default:
            raise ValueError(
                f"got {name}={value!r}, which DistributedDataParallel here does not offer; {remedy}"
            )


def require_type(expected: type, **arguments: object) -> None:
    """
    Raises:
        TypeError: an argument is of another type.
    """
    for name, value in arguments.items():
        if not isinstance(value, expected):
            raise TypeError(f"got {name}={value!r}, expected a {expected.__name__}")


def chosen_group(
    group: dist.ProcessGroup | None, mesh: dist.device_mesh.DeviceMesh | None
) -> dist.ProcessGroup:
    """The group of either argument, or the default one; this process must be a member."""
    if mesh is not None:
        if group is not None:
            raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
        require_type(dist.device_mesh.DeviceMesh, device_mesh=mesh)
        if mesh.ndim != 1:
            raise RuntimeError(f"Only 1D device mesh is supported, but got {mesh}.")
        group = mesh.get_group(mesh_dim=0)
    return member_group(group, "DistributedDataParallel")


def untrainable_reason(
    module: nn.Module, named: Sequence[tuple[str, nn.Parameter]]
) -> Exception | None:
    """The error if the module with these parameters cannot be trained over ranks, or None."""
    if not any(parameter.requires_grad for _, parameter in named):
        return RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that "
            "requires a gradient."
        )
    if any(isinstance(parameter, UninitializedParameter) for _, parameter in named):
        return RuntimeError(
            "Modules with uninitialized parameters can't be used with `DistributedDataParallel`. "
            "Run a dummy forward pass to correctly initialize the modules"
        )
    kinds = {parameter.device.type for _, parameter in named}
    if len(kinds) > 1:
        return ValueError(
            "DistributedDataParallel's input module must be on the same type of devices, but "
            f"input module parameters locate in {kinds}."
        )
    if not kinds <= {"cpu", "cuda"}:
        return ValueError(
            f"got parameters on {kinds.pop()!r}, expected the CPU or CUDA; give them memory first"
        )
    if kinds == {"cpu"} and any(isinstance(m, nn.SyncBatchNorm) for m in module.modules()):
        return ValueError("SyncBatchNorm layers only work with GPU modules")
    return None


def unwritable_reason(named: Sequence[tuple[str, Tensor]]) -> Exception | None:
    """The error for the first of these tensors that cannot be overwritten with another rank's
    values; None if all can."""
    for name, tensor in named:
        if tensor.layout != torch.strided:
            return RuntimeError(
                f"No support for sparse tensors: {name!r} has layout {tensor.layout}; make it "
                "dense, or leave buffers alone with broadcast_buffers=False"
            )
        if tensor.is_inference():
            return RuntimeError(
                f"{name!r} was made in torch.inference_mode(), so it can neither be trained nor "
                "sent; make the module outside of it"
            )
        if is_expanded(tensor):
            return RuntimeError(
                f"{name!r} is expanded: more than one element refers to a single memory location, "
                "so it cannot take other values; clone() it"
            )
    return None


def checked_devices(
    module: nn.Module, device_ids: Sequence[DeviceLike] | None, output_device: DeviceLike | None
) -> tuple[torch.device | None, torch.device | None]:
    """The devices to move inputs and outputs to; None leaves them where they are."""
    if isinstance(device_ids, str) or not (device_ids is None or isinstance(device_ids, Sequence)):
        raise TypeError(f"got device_ids={device_ids!r}, expected None or a list with one device")
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError(
            "device_ids can only be None or contain a single element, but got "
            f"{list(device_ids)!r}; start one process per device."
        )
    output = None if output_device is None else parse_device(output_device)
    if not device_ids and output is None:
        return None, None
    devices = {parameter.device for parameter in module.parameters()}
    if len(devices) > 1 or any(device.type == "cpu" for device in devices):
        raise ValueError(
            "DistributedDataParallel device_ids and output_device arguments only work with "
            "single-device/multiple-device GPU modules or CPU modules, but got "
            f"device_ids {device_ids!r}, output_device {output_device!r}, and module parameters "
            f"{ {str(device) for device in devices} }."
        )
    if not device_ids:
        return None, output
    wanted = parse_device(device_ids[0])
    if devices != {wanted}:
        raise ValueError(f"got device_ids={device_ids!r}, but the module is on {devices.pop()}")
    return wanted, output
