"""Averaging tensors over the ranks by hand, in few collectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.ddp.distributed_data_parallel import DistributedDataParallel

WRAPPERS = (DistributedDataParallel, nn.parallel.DistributedDataParallel)


def average(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> int:
    """Replace each tensor by its mean over the ranks, one collective per dtype and device.

    Args:
        tensors: dense and floating-point or complex; the same shapes and dtypes in the same order
            on every rank.
        group: the ranks.

    Returns:
        The number of bytes given to collectives.
    """
    alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    return sum(_average_flat(same, group) for same in alike.values())


def require_plain(module: nn.Module, caller: str) -> None:
    """
    Raises:
        TypeError: it is no module.
        RuntimeError: the module is, or contains, a wrapper that averages gradients already.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{caller}: got {module!r}, expected a torch.nn.Module")
    for name, child in module.named_modules():
        if isinstance(child, WRAPPERS):
            raise RuntimeError(
                f"{caller}: {repr(name) if name else 'the module'} is a {type(child).__name__}, "
                "whose backward averages gradients already; use one or the other"
            )


def _average_flat(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> int:
    # Divided before the sum, as DistributedDataParallel does: float16 could overflow in it.
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(dist.get_world_size(group))
    dist.all_reduce(torch.view_as_real(flat) if flat.is_complex() else flat, group=group)
    means = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, mean in zip(tensors, means, strict=True):
        tensor.copy_(mean.view_as(tensor))
    return flat.nbytes
