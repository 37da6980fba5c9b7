"""The algorithms of the collectives: blocking functions over memory that all ranks share.

Every element is reduced in the order of the ranks, so all ranks get the same bits. There are three
ways, shown here for the all-reduce; the other collectives do the same with less work, and a
broadcast is never in place. Below, r is this rank, and the parts of one line happen in this order
on every rank. |barrier| passes when all ranks have arrived, and |enter| is the barrier that opens
every collective.

*Small* (up to 64 KiB): each rank copies its operand to its slot, all enter, and each reduces all
slots for itself. Reducing n times is cheaper than waiting twice.

    slot[r] = tensor   |enter|   tensor = slot[0] + slot[1] + …

*In place* (the tensors of all ranks lie at one offset of memory that the group has allocated): each
rank reduces its share of the elements and writes the result to the tensors of all ranks. Nothing
else is copied.

    |enter|   tensor[0][share r] = … = tensor[0][share r] + tensor[1][share r] + …   |barrier|

*Staged* (all other large tensors): a chunk of 1 MiB or more goes through three stages. Each rank
copies to its buffer what the others reduce, reduces its own share into the buffer for results, and
copies all results from there.

    |enter|   buffer[r] = chunk   |barrier|   results[share r] = buffer[0][share r] + …
    |barrier|   chunk = results

The stages of different chunks overlap: between two barriers a rank copies chunk t in, reduces chunk
t − 1 and copies chunk t − 2 out. Two buffers, used in turn, are enough: chunk t overwrites the
buffer of chunk t − 2, which was reduced before the last barrier.

The other collectives stage no results: between two barriers each rank reads chunk t, and then fills
its other buffer with chunk t + 1. Their small case is the same with one chunk, in the slots.

*Why this is right, also on Arm.* A barrier posts one semaphore per other rank and then takes one
token from each. Posting releases and taking acquires, so all that a rank wrote before a barrier is
visible to all ranks after it, and all reads before it are over. Each pair of ranks and direction
has a semaphore of its own, so a fast rank's next token cannot be taken for a slow rank's. After
|enter| no rank is in the previous collective, so the buffers and the tensors of the other ranks may
be overwritten. Slots are written *before* |enter|, while a slow rank may still read those of the
previous collective, so there are two, used in turn; no rank can be two collectives ahead, as it
would have entered one without the slow rank.

Tensors are 1-D, contiguous and in the memory of the process. No operand may overlap a result,
except where a function allows it. Only reductions depend on the dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm.member import ShmMember
from dpbench.parallel.shm.memory import PIECE_BYTES, SLOT_BYTES

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
"""Elementwise functions (a, b, out=…) by the name of the torch.distributed.ReduceOp."""


def op_name(op: Any, dtype: torch.dtype) -> str:
    """The name of a torch.distributed.ReduceOp that this backend has for tensors of a dtype.

    Raises:
        ValueError: the backend does not have this operation, or not for this dtype.
    """
    # By number: hashing torch's enumeration would take most of the time.
    return _op_name(int(getattr(op, "op", op)), dtype)


@cache
def _op_name(number: int, dtype: torch.dtype) -> str:
    kind: Any = dist.ReduceOp.RedOpType(number)
    name: str = kind.name
    if name not in _FUNCTIONS:
        raise ValueError(f"shm has no reduction {kind}, expected one of {', '.join(_FUNCTIONS)}")
    # torch does not list the dtypes of a function, but it refuses the others.
    operands = torch.zeros(3, 1, dtype=dtype, device="cpu")
    try:
        _reduce(name, operands[:2].unbind(), out=operands[2])
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"shm cannot reduce {dtype} with {name}: {error}") from None
    return name


def _reduce(op: str, operands: Sequence[Tensor], out: Tensor) -> None:
    """Compute ((operands[0] ∘ operands[1]) ∘ operands[2]) …, always in the order of the ranks.

    `out` may be one of the first two operands.
    """
    if len(operands) == 1:
        out.copy_(operands[0])
        return
    function = _FUNCTIONS[op]
    function(operands[0], operands[1], out=out)
    for operand in operands[2:]:
        function(out, operand, out=out)
    if op == "AVG":
        out.mul_(1 / len(operands))


def all_reduce(member: ShmMember, tensor: Tensor, op: str) -> None:
    """Every rank gets the reduction of all operands in place of its own, `tensor`."""
    if tensor.nbytes <= SLOT_BYTES:
        slots = member.slots(tensor.dtype, tensor.numel())
        slots[member.rank].copy_(tensor)
        member.enter()
        _reduce(op, slots, out=tensor)
    elif (pieces := member.enter(tensor)) is not None:
        share = _share(member, tensor.numel())
        for operands in pieces(share.start, share.stop - share.start):
            _reduce(op, operands, out=operands[0])
            for copy in operands[1:]:
                copy.copy_(operands[0])
        member.barrier()
    else:
        _all_reduce_staged(member, tensor, op)


def _share(member: ShmMember, numel: int) -> slice:
    """The elements that this rank reduces for all."""
    return slice(*(numel * rank // member.size for rank in (member.rank, member.rank + 1)))


def _all_reduce_staged(member: ShmMember, tensor: Tensor, op: str) -> None:
    """Reduce chunk by chunk: each rank reduces its share and stages the result for the others."""
    *buffers, results = member.memory.buffers(tensor.dtype)
    own_buffers = buffers[member.rank]
    chunks = torch.split(tensor, own_buffers[0].numel())

    def contribute(number: int) -> None:
        chunk, share, turn = chunks[number], _share(member, chunks[number].numel()), number % 2
        own_buffers[turn][: share.start].copy_(chunk[: share.start])
        own_buffers[turn][share.stop : chunk.numel()].copy_(chunk[share.stop :])

    def reduce_share(number: int) -> None:
        share, turn = _share(member, chunks[number].numel()), number % 2
        operands = [turns[turn][share] for turns in buffers]
        operands[member.rank] = chunks[number][share]
        _reduce(op, operands, out=results[turn][share])

    def collect(number: int) -> None:
        chunk = chunks[number]
        chunk.copy_(results[number % 2][: chunk.numel()])

    # In step t, each stage works on a chunk of its own, and reads what the stage before it wrote
    # in step t - 1 from the buffer to which that stage does not write now.
    stages = (contribute, reduce_share, collect)
    steps = len(chunks) + len(stages) - 1
    for step in range(steps):
        for number, stage in enumerate(stages):
            if 0 <= step - number < len(chunks):
                stage(step - number)
        if step < steps - 1:
            member.barrier()


def reduce_scatter(member: ShmMember, operand: Tensor, output: Tensor, op: str) -> None:
    """Rank r gets the reduction of the r-th parts of the operands of all ranks.

    `operand` has one part for each rank, of one size; `output` may be this rank's part.
    """
    rank, size, numel = member.rank, member.size, output.numel()
    if operand.nbytes > SLOT_BYTES and (pieces := member.enter(operand)) is not None:
        targets = torch.split(output, PIECE_BYTES // output.itemsize)
        for target, operands in zip(targets, pieces(rank * numel, numel), strict=True):
            # The first two operands are combined in the output, which may be the memory of a third.
            if rank >= 2 and target.data_ptr() == operands[rank].data_ptr():
                operands = (*operands[:rank], target.clone(), *operands[rank + 1 :])
            _reduce(op, operands, out=target)
        member.barrier()
        return
    for elements, chunk, buffers, barrier in _chunks(member, operand.view(size, numel)):
        buffers[rank].view(chunk.shape).copy_(chunk)
        barrier()
        own_parts = [buffer.view(chunk.shape)[rank] for buffer in buffers]
        _reduce(op, own_parts, out=output[elements])


def broadcast(member: ShmMember, tensor: Tensor, root: int) -> None:
    """Every rank gets the root's tensor: `tensor` is the root's operand, the result elsewhere."""
    data, is_root = tensor.view(torch.uint8), member.rank == root
    if data.nbytes > SLOT_BYTES:
        member.enter()
    for _, chunk, buffers, barrier in _chunks(member, data):
        if is_root:
            buffers[root].copy_(chunk)
        barrier()
        if not is_root:
            chunk.copy_(buffers[root])


def all_gather(
    member: ShmMember,
    outputs: Sequence[Tensor],
    tensor: Tensor,
    full: Tensor | None = None,
) -> None:
    """Every rank gets the tensors of all ranks, which have one size.

    `outputs` are the results by rank, of which this rank's may be `tensor`; empty where none are
    wanted. If they are the parts of one tensor, on all ranks, that is `full`.
    """
    rank, data = member.rank, tensor.view(torch.uint8)
    results = [output.view(torch.uint8) for output in outputs]
    others = [(peer, result) for peer, result in enumerate(results) if peer != rank]
    if results and results[rank].data_ptr() != data.data_ptr():
        results[rank].copy_(data)
    if data.nbytes > SLOT_BYTES and (pieces := member.enter(full)) is not None:
        for copies in pieces(rank * tensor.numel(), tensor.numel()):
            for peer, _ in others:
                copies[peer].copy_(copies[rank])
        member.barrier()
        return
    for elements, chunk, buffers, barrier in _chunks(member, data):
        buffers[rank].copy_(chunk)
        barrier()
        for peer, result in others:
            result[elements].copy_(buffers[peer])


def _chunks(
    member: ShmMember, operand: Tensor
) -> Iterator[tuple[slice, Tensor, list[Tensor], Callable[[], object]]]:
    """The chunks of a collective that stages its operands only; this rank has entered a large one.

    For each, a rank fills its buffer, passes the barrier, and reads the buffers of all ranks.

    Args:
        member: this rank.
        operand: a part for all ranks, 1-D; or one for each of them, 2-D.

    Yields:
        A slice of the parts, what this rank's operand has there, buffers for that by rank, and the
        barrier.
    """
    if operand.nbytes <= SLOT_BYTES:
        slots = member.slots(operand.dtype, operand.numel())
        yield slice(None), operand, slots, member.enter
        return
    *buffers, _ = member.memory.buffers(operand.dtype)
    room = buffers[0][0].numel() // (operand.numel() // operand.shape[-1])
    for number, chunk in enumerate(torch.split(operand, room, dim=-1)):
        elements = slice(number * room, number * room + chunk.shape[-1])
        parts_by_rank = [turns[number % 2][: chunk.numel()] for turns in buffers]
        yield elements, chunk, parts_by_rank, member.barrier
