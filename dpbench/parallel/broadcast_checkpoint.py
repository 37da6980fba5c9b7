"""Give every rank the parameters and buffers of one rank, for example those it has just loaded."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dpbench.parallel.agreement import Entry, describe_tensor, require_agreement
from dpbench.parallel.averaging import WRAPPERS
from dpbench.parallel.ddp.broadcast import broadcast_coalesced
from dpbench.parallel.dp.data_parallel import DataParallel
from dpbench.parallel.groups import carrier, member_group


def broadcast_checkpoint(
    module: nn.Module, *, src: int = 0, process_group: dist.ProcessGroup | None = None
) -> int:
    """Overwrite parameters and buffers with those of one rank; a collective.

    They travel as tensors of bytes, of any dtype, never as pickled objects. Whether all ranks hold
    the same is compared first, so that a mismatch is an error on all of them and changes nothing.

    Args:
        module: plain or wrapped (DataParallel, DistributedDataParallel, ours or torch's); some
            ranks may pass a plain and others a wrapped module. Memory layouts may differ.
        src: the rank of the group that sends.
        process_group: the ranks; None means the default group.

    Returns:
        The number of bytes sent.

    Raises:
        TypeError: `module` is no module, or `src` no whole number.
        ValueError: the group has no rank `src`.
        RuntimeError: on every rank: ranks disagree on `src`; names, shapes or dtypes differ; a
            tensor cannot travel, as it is lazy, sparse or on no device.
    """
    group = member_group(process_group, "broadcast_checkpoint")
    _require_source(src, dist.get_world_size(group))
    if not isinstance(module, nn.Module):
        raise TypeError(f"broadcast_checkpoint: got {module!r}, expected a torch.nn.Module")
    tensors = _named_tensors(module)
    objections = (_objection(name, tensor) for name, tensor in tensors.items())
    objection = next(filter(None, objections), None)
    require_agreement(
        "broadcast_checkpoint",
        [
            Entry("option", "src", str(src)),
            *(Entry("tensor", name, describe_tensor(tensor)) for name, tensor in tensors.items()),
        ],
        group,
        objection=objection and f"rank {dist.get_rank(group)}: {objection}",
    )
    return _send([tensor.detach() for tensor in tensors.values()], src, group)


def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, sorted, whatever the order in which the module was built."""
    while isinstance(module, (*WRAPPERS, DataParallel, nn.DataParallel)):
        module = module.module
    named = [*module.named_parameters(), *module.named_buffers()]
    return dict(sorted(named, key=lambda pair: pair[0]))


def _send(tensors: list[Tensor], source: int, group: dist.ProcessGroup) -> int:
    """Send the tensors, through a copy where the group cannot take them as they are."""
    known = dist.get_backend_config(group)
    on = carrier(group)
    staged = [
        tensor.to(on, copy=True).resolve_conj().resolve_neg()
        if f"{tensor.device.type}:" not in known or tensor.is_conj() or tensor.is_neg()
        else tensor
        for tensor in tensors
    ]
    sent = broadcast_coalesced(staged, group, source)
    if dist.get_rank(group) != source:
        for tensor, copy in zip(tensors, staged, strict=True):
            if copy is not tensor:
                tensor.data.copy_(copy)
    return sent


def _require_source(source: int, size: int) -> None:
    if isinstance(source, bool) or not isinstance(source, int):
        raise TypeError(f"broadcast_checkpoint: got src={source!r}, expected a whole number")
    if not 0 <= source < size:
        raise ValueError(
            f"broadcast_checkpoint: got src={source}, expected a rank of the group: 0 to {size - 1}"
        )


def _objection(name: str, tensor: Tensor) -> str | None:
    if is_lazy(tensor):
        return f"{name!r} has no shape yet; run a forward first"
    if tensor.is_meta:
        return f"{name!r} is on the meta device and has no values"
    if tensor.layout is not torch.strided:
        return f"{name!r} is {tensor.layout}; only dense tensors are sent"
    if any(n > 1 and stride == 0 for n, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return f"{name!r} is an expanded view, which cannot be written; make it contiguous"
    return None
