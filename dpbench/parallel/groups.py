"""Membership, small messages and common decisions of a process group."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

LONGEST_MESSAGE_BYTES = 64 * 2**20
"""Largest message that a rank accepts, unless the caller gives another limit."""
_HEAD_BYTES = 1024
"""Bytes of each message sent in the first collective; most messages fit."""
_LENGTH_BYTES = 8


def member_group(group: dist.ProcessGroup | None, caller: str) -> dist.ProcessGroup:
    """The group to use; None means the default one.

    Raises:
        RuntimeError: there is no process group, or this process is not in it.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            f"{caller} needs a process group; call torch.distributed.init_process_group first"
        )
    chosen: dist.ProcessGroup | None = dist.group.WORLD if group is None else group
    if chosen is None or dist.get_rank(chosen) < 0:
        raise RuntimeError(f"{caller}: this process is not a member of the given process group")
    return chosen


def carrier(group: dist.ProcessGroup) -> torch.device:
    """A device whose tensors the group's collectives accept: the CPU, unless the group is nccl
    alone."""
    if "cpu:" in dist.get_backend_config(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def gather_bytes(
    data: bytes,
    group: dist.ProcessGroup,
    *,
    device: torch.device | None = None,
    limit_bytes: int = LONGEST_MESSAGE_BYTES,
) -> list[bytes]:
    """Gather one message from each rank of the group, by rank; a collective.

    Nothing is unpickled: that would let anyone who takes a rank's place run code here.

    Args:
        data: this rank's message; lengths may differ.
        group: the ranks.
        device: carries the messages where the group takes CUDA tensors only; None means the
            current one.
        limit_bytes: the length beyond which a message is refused; the same on all ranks.

    Raises:
        RuntimeError: on every rank, if one sends a longer message.
    """
    on = carrier(group)
    if on.type == "cuda" and device is not None:
        on = device
    context = torch.cuda.device(on) if on.type == "cuda" else contextlib.nullcontext()
    with context:
        head = len(data).to_bytes(_LENGTH_BYTES, "little") + data[:_HEAD_BYTES]
        heads = _gather(head, _LENGTH_BYTES + _HEAD_BYTES, on, group)
        lengths = [int.from_bytes(head[:_LENGTH_BYTES], "little") for head in heads]
        for rank, length in enumerate(lengths):
            if length > limit_bytes:
                raise RuntimeError(
                    f"rank {rank} sends a message of {length} bytes, expected at most {limit_bytes}"
                )
        longest = max(lengths)
        messages = [head[_LENGTH_BYTES:] for head in heads]
        if longest > _HEAD_BYTES:
            messages = _gather(data, longest, on, group)
        return [each[:length] for each, length in zip(messages, lengths, strict=True)]


def gather_values(
    value: Any, group: dist.ProcessGroup, *, device: torch.device | None = None
) -> list[Any]:
    """Gather `value` from every rank of the group, by rank; a collective.

    Args:
        value: None, numbers, text, bytes, tensors, and lists, tuples and dictionaries of them.
        group: the ranks.
        device: as in `gather_bytes`.

    Raises:
        RuntimeError: on every rank, if a rank's value takes more than LONGEST_MESSAGE_BYTES.
        ValueError: a rank sent bytes that are no such value.
    """
    return [
        decoded(message, rank)
        for rank, message in enumerate(gather_bytes(encoded(value), group, device=device))
    ]


def encoded(value: Any) -> bytes:
    """A value of the kinds that `gather_values` sends, for `decoded` on another rank."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def decoded(message: bytes, sender: int) -> Any:
    """The value that a rank encoded; tensors are on the CPU.

    With weights_only no message can run code here.

    Raises:
        ValueError: the message holds anything but a value of the kinds that `gather_values` sends.
    """
    try:
        return torch.load(io.BytesIO(message), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"rank {sender} sent a message that is no plain value: {reason}") from None


def largest(value: int, group: dist.ProcessGroup, *, device: torch.device | None = None) -> int:
    """The largest `value` of all ranks of the group; a collective.

    Args:
        value: this rank's value.
        group: the ranks.
        device: carries the values; None means what the group takes.
    """
    tensor = torch.tensor([value], device=carrier(group) if device is None else device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group)
    return int(tensor.item())


def _gather(data: bytes, length: int, on: torch.device, group: dist.ProcessGroup) -> list[bytes]:
    """The ranks' messages, padded to `length` bytes."""
    padded = torch.frombuffer(bytearray(data.ljust(length, b"\0")), dtype=torch.uint8).to(on)
    everyone = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, padded, group=group)
    return [message.cpu().numpy().tobytes() for message in everyone]


def name_ranks(ranks: Sequence[int]) -> str:
    """Write "rank 3", or "ranks 0, 1 and 2"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def any_rank(flag: bool, *, process_group: dist.ProcessGroup | None = None) -> bool:
    """Whether `flag` is true on at least one rank of the group; a collective of one number.

    A rank that skips a batch by itself, for lack of memory or because its loss is not finite,
    leaves the others waiting in the next collective. Whether to skip has to be decided before it:

        try:
            loss = criterion(model(inputs), targets)
        except torch.OutOfMemoryError:
            loss = None
        if any_rank(loss is None):
            continue  # on every rank
        loss.backward()  # reduces gradients

    A forward of DistributedDataParallel begins with collectives, so what may fail before it, such
    as reading the batch, needs a decision of its own.

    Raises:
        TypeError: `flag` is not a bool; a tensor would hide that it has to be read back.
    """
    if not isinstance(flag, bool):
        raise TypeError(f"got a flag of type {type(flag).__name__}, expected bool")
    group = member_group(process_group, "any_rank")
    return bool(largest(int(flag), group))


def all_ranks(flag: bool, *, process_group: dist.ProcessGroup | None = None) -> bool:
    """Whether `flag` is true on every rank of the group; a collective of one number.

    Raises:
        TypeError: `flag` is not a bool.
    """
    if not isinstance(flag, bool):
        raise TypeError(f"got a flag of type {type(flag).__name__}, expected bool")
    return not any_rank(not flag, process_group=process_group)
