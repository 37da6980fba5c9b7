"""Make modules equal without a wrapper: average gradients, or take the values of one rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDdp

from dpbench.parallel.agreement import make_equal, require_agreement
from dpbench.parallel.dp.data_parallel import DataParallel
from dpbench.parallel.groups import member_group, message_device
from dpbench.parallel.torch_private import copy_all

_NONE, _DENSE, _SPARSE = range(3)
"""Kinds of a parameter's gradient on a rank; the largest one counts for all ranks."""


def sync_gradients(
    module: nn.Module | Iterable[nn.Parameter],
    *,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Replace every gradient by its mean over the ranks; a collective, after backward.

    A parameter without a gradient on this rank counts as zero if another rank has one. If none has,
    it stays without. Gradients travel in one flat tensor per dtype and device. Unlike
    DistributedDataParallel nothing overlaps with backward.

    Args:
        module: an unwrapped module, or its parameters; the same on every rank.
        process_group: the ranks; None means the default group.

    Raises:
        RuntimeError: on every rank: the parameters differ between ranks, or a gradient is sparse
            on one of them. On the ranks concerned: the module is, or contains, a
            DistributedDataParallel, which averages already.
    """
    group = member_group(process_group, "sync_gradients")
    named: list[tuple[str, nn.Parameter]]
    if isinstance(module, nn.Module):
        if any(isinstance(child, TorchDdp) for child in module.modules()):
            raise RuntimeError(
                "sync_gradients: the module is or contains a DistributedDataParallel, whose "
                "backward averages gradients already; use one or the other"
            )
        named = list(module.named_parameters())
    else:
        named = [(str(number), parameter) for number, parameter in enumerate(module)]
    require_agreement("sync_gradients", group, named)
    kinds = [_NONE if p.grad is None else _SPARSE if p.grad.is_sparse else _DENSE for _, p in named]
    device = message_device(group, named[0][1].device if named else None)
    flags = torch.tensor(kinds, dtype=torch.uint8, device=device)
    dist.all_reduce(flags, dist.ReduceOp.MAX, group)
    gradients = []
    for (name, parameter), kind in zip(named, flags.tolist(), strict=True):
        if kind == _SPARSE:
            raise RuntimeError(
                f"sync_gradients: the gradient of parameter {name!r} is sparse on a rank, expected "
                "dense ones; use sparse=False, or DistributedDataParallel"
            )
        if kind == _NONE:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    average(gradients, group)


def average(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> int:
    """Replace each tensor by its mean over the ranks, one collective per dtype and device.

    They are dense and floating-point or complex, with the same shapes and dtypes in the same order
    on every rank. Returns the number of bytes given to collectives.
    """
    by_kind: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_kind[tensor.dtype, tensor.device].append(tensor.detach())
    nbytes = 0
    for alike in by_kind.values():
        # Divided before the sum, as DistributedDataParallel does: float16 could overflow in it.
        flat = torch.cat([t.reshape(-1) for t in alike]).div_(dist.get_world_size(group))
        dist.all_reduce(flat, group=group)
        parts = torch.split(flat, [tensor.numel() for tensor in alike])
        copy_all(alike, [part.view(t.shape) for part, t in zip(parts, alike, strict=True)])
        nbytes += flat.nbytes
    return nbytes


def broadcast_checkpoint(
    module: nn.Module, *, src: int = 0, process_group: dist.ProcessGroup | None = None
) -> int:
    """Overwrite parameters and buffers with those of one rank; a collective.

    They travel as tensors of bytes, of any dtype, never as pickled objects. Whether all ranks hold
    the same is compared first, so that a mismatch is an error on all of them and changes nothing.

    Args:
        module: plain or wrapped (DataParallel, DistributedDataParallel, ours or torch's); some
            ranks may pass a plain and some a wrapped module.
        src: the rank of the group that sends.
        process_group: the ranks; None means the default group, which has to take tensors on the
            module's device.

    Returns:
        The number of bytes sent.

    Raises:
        ValueError: the group has no rank `src`.
        RuntimeError: on every rank: ranks disagree on `src`; names, shapes, strides, dtypes or
            requires_grad differ.
    """
    group = member_group(process_group, "broadcast_checkpoint")
    size = dist.get_world_size(group)
    if type(src) is not int or not 0 <= src < size:
        raise ValueError(
            f"broadcast_checkpoint: got src={src!r}, expected a rank of the group: 0 to {size - 1}"
        )
    while isinstance(module, (TorchDdp, DataParallel, nn.DataParallel)):
        module = module.module
    named = module.named_parameters(), module.named_buffers()
    return make_equal("broadcast_checkpoint", group, *named, {"src": src}, source=src)
