"""The all-reduce, in one of three ways.

Every element is reduced in the order of the ranks, so all ranks get the same bits. Below, r is this
rank, and the parts of one line happen in this order on every rank. |barrier| passes when all ranks
have arrived, and |meet| is the one that opens every collective.

*Small* (up to 64 KiB): each rank copies its operand to its slot, all meet, and each reduces all
slots for itself. Reducing n times is cheaper than waiting twice.

    slot[r] = tensor   |meet|   tensor = slot[0] + slot[1] + …

*Shared* (the tensors of all ranks lie at one place of memory that the group has allocated): after
meeting, each rank reduces its share of the elements and writes the result to the tensors of all
ranks. Nothing else is copied.

    |meet|   tensor[0][share r] = … = tensor[0][share r] + tensor[1][share r] + …   |barrier|

*Staged* (all other large tensors): a chunk of 1 MiB or more goes through three stages. Each rank
copies to its staging buffer what the others reduce, reduces its own share into the buffer for
results, and copies all results from there.

    |meet|   staging[r] = chunk   |barrier|   results[share r] = staging[0][share r] + …
    |barrier|   chunk = results

The stages of different chunks overlap: between two barriers a rank copies chunk t in, reduces chunk
t − 1 and copies chunk t − 2 out. Two buffers, used in turn, are enough: chunk t overwrites the
buffer of chunk t − 2, which was reduced before the last barrier.

*Why this is right, also on Arm.* A barrier posts one semaphore per other rank and then takes one
token from each. Posting releases and taking acquires, so all that a rank wrote before a barrier is
visible to all ranks after it, and all reads before it are over. Each pair of ranks and direction
has a semaphore of its own, so a fast rank's next token cannot be taken for a slow rank's. `meet` is
the barrier that opens every collective: after it no rank is in the previous one, so the staging
buffers and the tensors of the other ranks may be overwritten. Slots are written *before* `meet`,
while a slow rank may still read those of the previous collective, so there are two, used in turn;
no rank can be two collectives ahead, as it would have passed a `meet` without the slow one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpbench.parallel.shm.allocation import Allocations, Block
from dpbench.parallel.shm.member import Member, describe, pipelined
from dpbench.parallel.shm.memory import LINE_BYTES, SLOT_BYTES
from dpbench.parallel.shm.operators import Operator

PIECE_BYTES = 256 * 1024
"""Piece of a share that is reduced at a time: two or three operands fit the second-level cache."""


def all_reduce(
    member: Member, allocations: Allocations, tensor: Tensor, operator: Operator
) -> None:
    """Every rank gets the reduction in place of its operand.

    Args:
        member: this rank.
        allocations: may contain the operand.
        tensor: 1-D, contiguous, in the memory of the process.
        operator: the reduction.
    """
    own = describe("all_reduce", tensor, operator.name)
    if tensor.nbytes <= SLOT_BYTES:
        operands = member.operands(tensor.dtype, tensor.numel())
        operands[member.rank].copy_(tensor)
        member.meet(own)
        operator.reduce(operands, out=tensor)
        return
    block, place = allocations.find(tensor)
    if member.meet(own, place) and block is not None:
        _shared(member, block, tensor, operator)
    else:
        _staged(member, tensor, operator)


def _shared(member: Member, block: Block, tensor: Tensor, operator: Operator) -> None:
    """Reduce this rank's share of the elements in place, and write it to all ranks."""
    for operands in _pieces(member, block, tensor):
        result = operands[0]
        operator.reduce(operands, out=result)
        for copy in operands[1:]:
            copy.copy_(result)
    member.barrier()


def _pieces(member: Member, block: Block, tensor: Tensor) -> Sequence[tuple[Tensor, ...]]:
    """This rank's share of the elements, in pieces, each with one view per rank; made once."""
    key = (tensor.data_ptr(), tensor.dtype, tensor.numel())
    pieces = block.views.get(key)
    if pieces is None:
        shares = [operand.tensor_split(member.size)[member.rank] for operand in block.like(tensor)]
        split = [torch.split(share, PIECE_BYTES // share.element_size()) for share in shares]
        pieces = block.views[key] = list(zip(*split, strict=True))
    return pieces


def _staged(member: Member, tensor: Tensor, operator: Operator) -> None:
    """Reduce chunk by chunk: each rank reduces its share and stages the result for the others."""
    buffers, results, room = member.staging(tensor.dtype)
    own, chunks = buffers[member.rank], torch.split(tensor, room)
    line = max(1, LINE_BYTES // tensor.element_size())

    def share(chunk: Tensor) -> slice:
        """This rank's share of a chunk; shares consist of whole cache lines."""
        numel = chunk.numel()
        most = -(-numel // (member.size * line)) * line
        low = min(member.rank * most, numel)
        return slice(low, min(low + most, numel))

    def contribute(number: int) -> None:
        chunk, mine, turn = chunks[number], share(chunks[number]), number % 2
        own[turn][: mine.start].copy_(chunk[: mine.start])
        own[turn][mine.stop : chunk.numel()].copy_(chunk[mine.stop :])

    def reduce_share(number: int) -> None:
        mine, turn = share(chunks[number]), number % 2
        operands = [of_rank[turn][mine] for of_rank in buffers]
        operands[member.rank] = chunks[number][mine]
        operator.reduce(operands, out=results[turn][mine])

    def collect(number: int) -> None:
        chunk = chunks[number]
        chunk.copy_(results[number % 2][: chunk.numel()])

    pipelined(member, len(chunks), contribute, reduce_share, collect)
