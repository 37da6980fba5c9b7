"""The collectives: blocking functions over memory that all ranks share.

Every element is reduced in the order of the ranks, so all ranks get the same bits. There are three
ways, shown here for the all-reduce; the other collectives do the same with less work, and a
broadcast is never in place. Below, r is this rank, and the parts of one line happen in this order
on every rank. |barrier| passes when all ranks have arrived, and |enter| (`enter_collective`) is the
barrier that opens every collective.

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

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm.member import ShmMember
from dpbench.parallel.shm.memory import LINE_BYTES, SLOT_BYTES, Allocation

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


def barrier(member: ShmMember) -> None:
    """Pass when all ranks have arrived."""
    member.enter_collective("barrier()")


def all_reduce(member: ShmMember, tensor: Tensor, op: str) -> None:
    """Every rank gets the reduction of all operands in place of its own, `tensor`."""
    operation = f"all_reduce({op}, {_kind(tensor)})"
    if tensor.nbytes <= SLOT_BYTES:
        slots = member.slots(tensor.dtype, tensor.numel())
        slots[member.rank].copy_(tensor)
        member.enter_collective(operation)
        _reduce(op, slots, out=tensor)
        return
    if (allocation := member.enter_collective(operation, tensor)) is not None:
        for operands in _share_pieces(member, allocation, tensor):
            result = operands[0]
            _reduce(op, operands, out=result)
            for copy in operands[1:]:
                copy.copy_(result)
        member.barrier()
    else:
        _all_reduce_staged(member, tensor, op)


def _share_pieces(
    member: ShmMember, allocation: Allocation, tensor: Tensor
) -> Sequence[tuple[Tensor, ...]]:
    """This rank's share of the elements, in pieces, each with one view per rank; made once."""
    key = (tensor.data_ptr(), tensor.dtype, tensor.numel())
    pieces = allocation.views.get(key)
    if pieces is None:
        share = tensor.tensor_split(member.size)[member.rank]
        shares = [allocation.of_rank(peer, share) for peer in range(member.size)]
        split = [torch.split(part, PIECE_BYTES // part.element_size()) for part in shares]
        pieces = allocation.views[key] = list(zip(*split, strict=True))
    return pieces


def _all_reduce_staged(member: ShmMember, tensor: Tensor, op: str) -> None:
    """Reduce chunk by chunk: each rank reduces its share and stages the result for the others."""
    buffers, results, numel = member.staging_buffers(tensor.dtype)
    own_buffers, chunks = buffers[member.rank], torch.split(tensor, numel)
    line = max(1, LINE_BYTES // tensor.element_size())

    def share_of(chunk: Tensor) -> slice:
        """This rank's share of a chunk; shares consist of whole cache lines."""
        numel = chunk.numel()
        most = -(-numel // (member.size * line)) * line
        low = min(member.rank * most, numel)
        return slice(low, min(low + most, numel))

    def contribute(number: int) -> None:
        chunk, share, turn = chunks[number], share_of(chunks[number]), number % 2
        own_buffers[turn][: share.start].copy_(chunk[: share.start])
        own_buffers[turn][share.stop : chunk.numel()].copy_(chunk[share.stop :])

    def reduce_share(number: int) -> None:
        share, turn = share_of(chunks[number]), number % 2
        operands = [turns[turn][share] for turns in buffers]
        operands[member.rank] = chunks[number][share]
        _reduce(op, operands, out=results[turn][share])

    def collect(number: int) -> None:
        chunk = chunks[number]
        chunk.copy_(results[number % 2][: chunk.numel()])

    pipelined(member, len(chunks), contribute, reduce_share, collect)


def reduce_scatter(member: ShmMember, operand: Tensor, output: Tensor, op: str) -> None:
    """Rank r gets the reduction of the r-th parts of the operands of all ranks.

    `operand` has one part for each rank, of one size; `output` may be this rank's part.
    """
    rank, operation = member.rank, f"reduce_scatter({op}, {_kind(output)})"
    if operand.nbytes <= SLOT_BYTES:
        slots = member.slots(operand.dtype, operand.numel())
        slots[rank].copy_(operand)
        member.enter_collective(operation)
        part = slice(rank * output.numel(), (rank + 1) * output.numel())
        _reduce(op, [slot[part] for slot in slots], out=output)
        return
    if (allocation := member.enter_collective(operation, operand)) is not None:
        targets = torch.split(output, PIECE_BYTES // output.element_size())
        for target, pieces in zip(targets, _share_pieces(member, allocation, operand), strict=True):
            # The first two operands are combined into the target, which may be the third's memory.
            operands = [p.clone() if r == rank >= 2 else p for r, p in enumerate(pieces)]
            _reduce(op, operands, out=target)
        member.barrier()
        return
    buffers, _, numel = member.staging_buffers(output.dtype)
    numel //= member.size  # a buffer holds a piece for each rank
    parts = [torch.split(part, numel) for part in operand.view(member.size, output.numel())]
    places = [[torch.split(buffer, numel) for buffer in turns] for turns in buffers]
    outputs = torch.split(output, numel)

    def contribute(number: int) -> None:
        for part, place in zip(parts, places[rank][number % 2], strict=False):
            place[: part[number].numel()].copy_(part[number])

    def reduce_piece(number: int) -> None:
        target = outputs[number]
        _reduce(op, [turns[number % 2][rank][: target.numel()] for turns in places], out=target)

    pipelined(member, len(outputs), contribute, reduce_piece)


def broadcast(member: ShmMember, tensor: Tensor, root: int) -> None:
    """Every rank gets the root's tensor: `tensor` is the root's operand, the result elsewhere."""
    data, is_root = tensor.view(torch.uint8), member.rank == root
    sent, received = (data, {}) if is_root else (None, {root: data})
    operation = f"broadcast({_kind(tensor)}, root {root})"
    if tensor.nbytes <= SLOT_BYTES:
        _send_through_slots(member, operation, sent, received, tensor.nbytes)
        return
    member.enter_collective(operation)
    _send_through_buffers(member, sent, received, tensor.nbytes)


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
    data = tensor.view(torch.uint8)
    received = {peer: output.view(torch.uint8) for peer, output in enumerate(outputs)}
    own_output = received.pop(member.rank, None)
    if own_output is not None and own_output.data_ptr() != data.data_ptr():
        own_output.copy_(data)
    operation = f"all_gather({_kind(tensor)})"
    if tensor.nbytes <= SLOT_BYTES:
        _send_through_slots(member, operation, data, received, tensor.nbytes)
        return
    if (allocation := member.enter_collective(operation, full)) is not None:
        for peer, part in received.items():
            part.copy_(allocation.of_rank(peer, part))
        member.barrier()
    else:
        _send_through_buffers(member, data, received, tensor.nbytes)


def _send_through_slots(
    member: ShmMember,
    operation: str,
    sent: Tensor | None,
    received: Mapping[int, Tensor],
    nbytes: int,
) -> None:
    """Send a few bytes, if this rank has any for the others, and receive theirs, by rank."""
    slots = member.slots(torch.uint8, nbytes)
    if sent is not None:
        slots[member.rank].copy_(sent)
    member.enter_collective(operation)
    for peer, target in received.items():
        target.copy_(slots[peer])


def _send_through_buffers(
    member: ShmMember, sent: Tensor | None, received: Mapping[int, Tensor], nbytes: int
) -> None:
    """Send many bytes chunk by chunk, if this rank has any for the others, and receive theirs."""
    buffers, _, room = member.staging_buffers(torch.uint8)

    def send(number: int) -> None:
        if sent is not None:
            chunk = sent[number * room :][:room]
            buffers[member.rank][number % 2][: chunk.numel()].copy_(chunk)

    def receive(number: int) -> None:
        for peer, target in received.items():
            chunk = target[number * room :][:room]
            chunk.copy_(buffers[peer][number % 2][: chunk.numel()])

    pipelined(member, -(-nbytes // room), send, receive)


def _kind(tensor: Tensor) -> str:
    """Size and dtype of an operand for messages, as in "12 × torch.float32"."""
    return f"{tensor.numel()} × {tensor.dtype}"


def pipelined(member: ShmMember, chunks: int, *stages: Callable[[int], None]) -> None:
    """Run every stage on every chunk; a stage sees what all ranks did in the stage before it.

    In step t, stage s works on chunk t − s. With two alternating buffers, stage s + 1 reads from
    one what stage s wrote in the step before, while stage s writes to the other.

    Args:
        member: this rank, after `enter_collective`.
        chunks: how many; equal on all ranks, as is the number of stages.
        stages: each called with the numbers of the chunks, in order.
    """
    steps = chunks + len(stages) - 1
    for step in range(steps):
        for number, stage in enumerate(stages):
            if 0 <= step - number < chunks:
                stage(step - number)
        if step < steps - 1:
            member.barrier()
