"""Checks of DistributedDataParallel's module and arguments, before any communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
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
WITHOUT_EFFECT = {"batched_grad_copy"}
"""Arguments that change nothing here: gradients are always copied together."""


def refuse(arguments: Mapping[str, Any]) -> None:
    """Check the arguments that are in torch's signature only.

    Raises:
        ValueError: one of them is not at its default.
        TypeError: neither class has such an argument.
    """
    for name in arguments.keys() - WITHOUT_EFFECT:
        if name not in NOT_OFFERED:
            raise TypeError(f"DistributedDataParallel got an unexpected keyword argument {name!r}")
        default, remedy = NOT_OFFERED[name]
        if arguments[name] != default:
            raise ValueError(
                f"got {name}={arguments[name]!r}, which DistributedDataParallel here does not "
                f"offer; {remedy}"
            )


def require_type(expected: type, **arguments: object) -> None:
    """
    Raises:
        TypeError: an argument is of another type.
    """
    for name, value in arguments.items():
        if not isinstance(value, expected):
            raise TypeError(f"got {name}={value!r}, expected a {expected.__name__}")


def chosen_group(group: dist.ProcessGroup | None, mesh: DeviceMesh | None) -> dist.ProcessGroup:
    """The group of either argument, or the default one; this process must be a member."""
    if mesh is not None:
        if group is not None:
            raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
        if mesh.ndim != 1:
            raise RuntimeError(f"Only 1D device mesh is supported, but got {mesh}.")
        group = mesh.get_group(mesh_dim=0)
    return member_group(group, "DistributedDataParallel")


def require_trainable(
    module: nn.Module,
    parameters: Sequence[tuple[str, nn.Parameter]],
    buffers: Sequence[tuple[str, Tensor]],
) -> None:
    """Check that the module can be trained over ranks.

    Args:
        module: the module.
        parameters: those that take part, frozen ones included.
        buffers: those that are sent.

    Raises:
        RuntimeError, ValueError: it cannot; in the words of torch's class where it has the check.
    """
    if not any(parameter.requires_grad for _, parameter in parameters):
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that "
            "requires a gradient."
        )
    if any(isinstance(parameter, UninitializedParameter) for _, parameter in parameters):
        raise RuntimeError(
            "Modules with uninitialized parameters can't be used with `DistributedDataParallel`. "
            "Run a dummy forward pass to correctly initialize the modules"
        )
    kinds = {parameter.device.type for _, parameter in parameters}
    if len(kinds) > 1 or not kinds <= {"cpu", "cuda"}:
        raise ValueError(
            "DistributedDataParallel's input module must be on the same type of devices, CPU or "
            f"CUDA, but input module parameters locate in {kinds}."
        )
    if kinds == {"cpu"} and any(isinstance(m, nn.SyncBatchNorm) for m in module.modules()):
        raise ValueError("SyncBatchNorm layers only work with GPU modules")
    for name, tensor in (*parameters, *buffers):
        if tensor.layout != torch.strided or is_expanded(tensor):
            kind = "expanded" if tensor.layout == torch.strided else f"of layout {tensor.layout}"
            raise RuntimeError(
                f"got {name!r}, which is {kind}, expected dense tensors with memory of their own; "
                "clone() it, or leave buffers alone with broadcast_buffers=False"
            )


def input_device(
    module: nn.Module, device_ids: Sequence[DeviceLike] | None, output_device: DeviceLike | None
) -> torch.device | None:
    """The device to move inputs to; None leaves them where they are.

    Raises:
        TypeError: `device_ids` is no list.
        ValueError: there are several device ids, or one that is not the module's.
    """
    if isinstance(device_ids, str) or not (device_ids is None or isinstance(device_ids, Sequence)):
        raise TypeError(f"got device_ids={device_ids!r}, expected None or a list with one device")
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError(
            "device_ids can only be None or contain a single element, but got "
            f"{list(device_ids)!r}; start one process per device."
        )
    if not device_ids and output_device is None:
        return None
    devices = {parameter.device for parameter in module.parameters()}
    wanted = parse_device(device_ids[0]) if device_ids else None
    for device in (wanted, None if output_device is None else parse_device(output_device)):
        if device is not None and (devices != {device} or device.type == "cpu"):
            raise ValueError(
                "DistributedDataParallel device_ids and output_device arguments only work with "
                f"single-device GPU modules, but got device_ids {device_ids!r}, output_device "
                f"{output_device!r}, and module parameters {sorted(map(str, devices))}."
            )
    return wanted
