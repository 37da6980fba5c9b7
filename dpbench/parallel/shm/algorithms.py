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

*Why this is right, also on Arm.* A barrier posts one semaphore per other rank and then takes one
token from each. Posting releases and taking acquires, so all that a rank wrote before a barrier is
visible to all ranks after it, and all reads before it are over. Each pair of ranks and direction
has a semaphore of its own, so a fast rank's next token cannot be taken for a slow rank's. After
|enter| no rank is in the previous collective, so the buffers and the tensors of the other ranks may
be overwritten. Slots are written *before* |enter|, while a slow rank may still read those of the
previous collective, so there are two, used in turn; no rank can be two collectives ahead, as it
would have entered one without the slow rank.

Tensors are 1-D, contiguous and in the memory of the process. No operand may overlap a result,
except where that is said. What is not reduced is moved as bytes, so any dtype works.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm.member import ShmMember
from dpbench.parallel.shm.memory import SLOT_BYTES

PIECE_BYTES = 256 * 1024
"""Piece of a share that is reduced at a time: two or three operands fit the second-level cache."""

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
        begins, numel = (share.start,) * member.size, share.stop - share.start
        for _, operands in pieces(begins, numel, PIECE_BYTES):
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
    rank = member.rank
    for piece, operands in _peer_operands(
        member, operand, rows=member.size, full=operand, most=PIECE_BYTES
    ):
        target = output[piece]
        # The first two operands are combined in the output, which may be the memory of a third.
        if rank >= 2 and target.data_ptr() == operands[rank].data_ptr():
            operands = [*operands[:rank], target.clone(), *operands[rank + 1 :]]
        _reduce(op, operands, out=target)


def broadcast(member: ShmMember, tensor: Tensor, root: int) -> None:
    """Every rank gets the root's tensor: `tensor` is the root's operand, the result elsewhere."""
    data, is_root = tensor.view(torch.uint8), member.rank == root
    for piece, operands in _peer_operands(member, data, sends=is_root):
        if not is_root:
            data[piece].copy_(operands[root])


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
    data, results = tensor.view(torch.uint8), [output.view(torch.uint8) for output in outputs]
    if results and results[member.rank].data_ptr() != data.data_ptr():
        results[member.rank].copy_(data)
    full = None if full is None else full.view(torch.uint8)
    for piece, operands in _peer_operands(member, data, full=full):
        for peer, result in enumerate(results):
            if peer != member.rank:
                result[piece].copy_(operands[peer])


def _peer_operands(
    member: ShmMember,
    operand: Tensor,
    *,
    rows: int = 1,
    sends: bool = True,
    full: Tensor | None = None,
    most: int = sys.maxsize,
) -> Iterator[tuple[slice, Sequence[Tensor]]]:
    """Enter a collective in which each rank reads the operands of the others; one of three ways.

    Args:
        member: this rank.
        operand: what this rank has for the others.
        rows: how many equal rows `operand` has: one for each rank, or one for all of them.
        sends: whether the others read it.
        full: the rows for or of all ranks, which are read in place if they lie in the group's
            memory, at one offset on all ranks.
        most: bytes of a slice in place.

    Yields:
        A slice of a row, and by rank that rank's row for this rank, there. It can be read until the
        next one is taken; every rank must take all.
    """
    own_row, width = member.rank if rows > 1 else 0, operand.numel() // rows
    if operand.nbytes <= SLOT_BYTES:
        slots = member.slots(operand.dtype, operand.numel())
        if sends:
            slots[member.rank].copy_(operand)
        member.enter()
        if rows > 1:
            slots = [slot.view(rows, width)[own_row] for slot in slots]
        yield slice(None), slots
        return
    if (pieces := member.enter(full)) is not None:
        begins = tuple(width * (own_row if rows > 1 else peer) for peer in range(member.size))
        yield from pieces(begins, width, most)
        member.barrier()
        return
    *buffers, _ = member.memory.buffers(operand.dtype)
    room = buffers[0][0].numel() // rows
    copies = [[turn[: rows * room].view(rows, room) for turn in turns] for turns in buffers]
    chunks = torch.split(operand.view(rows, width), room, dim=1)

    def send(number: int) -> None:
        if sends and number < len(chunks):
            chunk = chunks[number]
            copies[member.rank][number % 2][:, : chunk.shape[1]].copy_(chunk)

    send(0)
    for number, chunk in enumerate(chunks):
        member.barrier()
        send(number + 1)  # to the buffers that all have read before the barrier
        begin, numel = number * room, chunk.shape[1]
        operands = [turns[number % 2][own_row, :numel] for turns in copies]
        yield slice(begin, begin + numel), operands
