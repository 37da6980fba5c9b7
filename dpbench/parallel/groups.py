"""Membership, small messages and common decisions of a process group."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.devices import current_device

CPU = torch.device("cpu")
OPERATIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
"""Operations of `all_reduce`."""
Wait = Callable[[], object]
"""Waits for a collective that has been started; on CUDA only the current stream waits."""


class PeerFailed(dist.DistBackendError):
    """A collective of this rank cannot complete, as another rank has ended or failed."""


def member_group(group: dist.ProcessGroup | None, caller: str) -> dist.ProcessGroup:
    """The group to use; None means the default one.

    Raises:
        RuntimeError: there is no process group, or this process is not in it.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            f"{caller} needs a process group; call torch.distributed.init_process_group or "
            "dpbench.process_group first"
        )
    chosen: dist.ProcessGroup | None = dist.group.WORLD if group is None else group
    if chosen is None or dist.get_rank(chosen) < 0:
        raise RuntimeError(f"{caller}: this process is not a member of the given process group")
    return chosen


def has_backend(group: dist.ProcessGroup, device: torch.device, name: str = "") -> bool:
    """Whether the group takes tensors on a device, with a backend whose name begins like this."""
    return f"{device.type}:{name}" in dist.get_backend_config(group)


def message_device(group: dist.ProcessGroup, device: torch.device | None = None) -> torch.device:
    """A device whose tensors the group's collectives accept.

    The CPU; or, if the group takes CUDA tensors only, the device that it is bound to, else
    `device`, on which the module is, else the current device.
    """
    if has_backend(group, CPU):
        return CPU
    for candidate in (group.bound_device_id, device):
        if candidate is not None and candidate.type == "cuda":
            return candidate
    return current_device()


def gather_tensors(tensor: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """Gather a tensor of the same shape from each rank of the group, by rank; a collective."""
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, tensor, group)
    return gathered


def gather_values(
    value: Any,
    group: dist.ProcessGroup,
    *,
    device: torch.device | None = None,
    root: int | None = None,
) -> list[Any]:
    """Gather `value` from every rank, by rank, with its tensors on the CPU; a collective.

    Args:
        value: None, numbers, text, tensors, or lists, tuples and dictionaries of them.
        group: the ranks.
        device: see `message_device`.
        root: the only rank that gets the values, the others get none; None means all ranks.
    """
    on = message_device(group, device)
    buffer = io.BytesIO()
    torch.save(value, buffer)
    data = buffer.getvalue()
    lengths = [int(n) for n in gather_tensors(torch.tensor([len(data)], device=on), group)]
    message = torch.frombuffer(bytearray(data.ljust(max(lengths), b"\0")), dtype=torch.uint8).to(on)
    if root is None:
        messages = gather_tensors(message, group)
    else:
        messages = [torch.empty_like(message) for _ in lengths if root == dist.get_rank(group)]
        dist.gather(message, messages or None, group=group, group_dst=root)
        lengths = lengths[: len(messages)]
    received = [
        io.BytesIO(message[:length].cpu().numpy().tobytes())
        for message, length in zip(messages, lengths, strict=True)
    ]
    # With weights_only no message can run code here.
    return [torch.load(one, map_location="cpu", weights_only=True) for one in received]


def all_reduce(tensor: Tensor, op: str = "sum", group: dist.ProcessGroup | None = None) -> Tensor:
    """Reduce the tensors of all ranks, in place, and return the tensor; a collective.

    Args:
        tensor: this rank's tensor, of the same shape and dtype on all ranks.
        op: one of OPERATIONS. "avg" is the sum divided by the number of ranks, so it works on every
            backend.
        group: the ranks; None means the default group.

    Raises:
        ValueError: the operation is not known, or is an average of whole numbers.
        RuntimeError: there is no group.
    """
    if op not in OPERATIONS:
        raise ValueError(f"all_reduce: got op={op!r}, expected one of {', '.join(OPERATIONS)}")
    if op == "avg" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"all_reduce: got an average of {tensor.dtype}, expected real numbers")
    chosen = member_group(group, "all_reduce")
    dist.all_reduce(tensor, getattr(dist.ReduceOp, "SUM" if op == "avg" else op.upper()), chosen)
    return tensor.div_(dist.get_world_size(chosen)) if op == "avg" else tensor


def max_over_ranks(
    value: int, group: dist.ProcessGroup, *, device: torch.device | None = None
) -> int:
    """The largest `value` of all ranks; a collective. For `device` see `message_device`."""
    tensor = torch.tensor([value], device=message_device(group, device))
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group)
    return int(tensor.item())


def name_ranks(ranks: Sequence[int]) -> str:
    """Write "rank 3", or "ranks 0, 1 and 2"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def any_rank(flag: bool, *, process_group: dist.ProcessGroup | None = None) -> bool:
    """Whether `flag` is true on at least one rank of the group; a collective of one number.

    A rank that skips a batch by itself, for lack of memory or because its loss is not finite,
    leaves the others waiting in the next collective. So all decide before it:

        try:
            loss = criterion(model(inputs), targets)
        except torch.OutOfMemoryError:
            loss = None
        if any_rank(loss is None):
            continue  # on every rank
        loss.backward()  # reduces gradients

    A forward of DistributedDataParallel begins with collectives, so what may fail before it, such
    as reading the batch, needs a decision of its own.
    """
    return bool(max_over_ranks(int(flag), member_group(process_group, "any_rank")))
