"""Averaging tensors over the ranks by hand, in few collectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.ddp.distributed_data_parallel import DistributedDataParallel
from dpbench.parallel.flat import by_kind, copy_all, flattened, unflattened

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
    same_kind = by_kind(tensor.detach() for tensor in tensors)
    return sum(_average_flat(alike, group) for alike in same_kind)


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
    flat = flattened(tensors).div_(dist.get_world_size(group))
    dist.all_reduce(torch.view_as_real(flat) if flat.is_complex() else flat, group=group)
    copy_all(tensors, unflattened(flat, tensors))
    return flat.nbytes
