"""All-reduce, reduce and reduce-scatter of contiguous tensors in the memory of the process.

Every element is reduced by one rank, in the order of the ranks, so all get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpbench.parallel.shm.arena import Arena, Pieces
from dpbench.parallel.shm.descriptor import NOWHERE, Place, pack, places
from dpbench.parallel.shm.exchanges import agree_on_counts, pipelined
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.memory import LINE_BYTES, PIECE_BYTES, SLOT_BYTES
from dpbench.parallel.shm.operators import Operator

# Number of chunk sizes whose views are cached; all chunks of a tensor but the last have one size.
_CACHED_SHARES = 64
_CACHED_PIECES = 4096


def all_reduce(member: Member, arena: Arena, tensor: Tensor, operator: Operator) -> Steps[None]:
    """Every rank gets the reduction in place of its operand.

    Args:
        member: this rank.
        arena: may contain the operand; if all ranks' operands lie in it at one place, nothing is
            copied.
        tensor: 1-D, contiguous.
        operator: the reduction.
    """
    if tensor.nbytes <= SLOT_BYTES:
        own = pack("all_reduce", tensor.dtype, tensor.numel(), operator=operator.code)
        operands = member.operands(tensor.dtype, tensor.numel())
        operands[member.rank].copy_(tensor)
        yield from member.meet(own)
        operator.reduce(operands, out=tensor)
        return
    place = arena.place_of(tensor)
    own = pack("all_reduce", tensor.dtype, tensor.numel(), operator=operator.code, place=place)
    met = places((yield from member.meet(own)))
    if place != NOWHERE and all(other == place for other in met):
        yield from _in_place(member, _pieces(member, arena, place, tensor), operator)
    else:
        yield from staged(member, tensor, operator, keep=True)


def reduce(member: Member, tensor: Tensor, operator: Operator, root: int) -> Steps[None]:
    """The root gets the reduction in place of its operand; the others keep theirs."""
    own = pack("reduce", tensor.dtype, tensor.numel(), operator=operator.code, root=root)
    keep = member.rank == root
    if tensor.nbytes <= SLOT_BYTES:
        operands = member.operands(tensor.dtype, tensor.numel())
        operands[member.rank].copy_(tensor)
        yield from member.meet(own)
        if keep:
            operator.reduce(operands, out=tensor)
        return
    yield from member.meet(own)
    yield from staged(member, tensor, operator, keep=keep)


def reduce_scatter(
    member: Member, inputs: Sequence[Tensor], output: Tensor, operator: Operator
) -> Steps[None]:
    """Rank r gets the reduction of all ranks' r-th input.

    Args:
        member: this rank.
        inputs: one for each rank; 1-D, contiguous, perhaps of different sizes.
        output: like this rank's input; it may be the same tensor.
        operator: the reduction.

    Raises:
        Mismatch: on every rank: they disagree on the sizes.
    """
    counts = [tensor.numel() for tensor in inputs]
    if counts.count(counts[0]) < len(counts):
        yield from agree_on_counts(member, "reduce_scatter_v", output.dtype, counts)
    own = pack("reduce_scatter", output.dtype, max(counts), operator=operator.code)
    yield from member.meet(own)
    me, (buffers, _, numel) = member.rank, member.staging(output.dtype)
    share = numel // member.size
    chunks = -(-max(counts) // share)
    pieces = [split_into(tensor, share, chunks) for tensor in inputs]
    places = [[torch.split(buffer, share) for buffer in of_rank] for of_rank in buffers]
    targets = split_into(output, share, chunks)

    def contribute(chunk: int) -> None:
        for reducer, place in enumerate(places[me][chunk % 2][: member.size]):
            if reducer != me:
                piece = pieces[reducer][chunk]
                place[: piece.numel()].copy_(piece)

    def reduce_share(chunk: int) -> None:
        target = targets[chunk]
        operands = [place[chunk % 2][me][: target.numel()] for place in places]
        if me < 2:
            operands[me] = pieces[me][chunk]
        else:
            # The first two are combined into the target, which may be this operand's memory.
            operands[me].copy_(pieces[me][chunk])
        operator.reduce(operands, out=target)

    yield from pipelined(member, chunks, contribute, reduce_share)


def split_into(tensor: Tensor, numel: int, count: int) -> list[Tensor]:
    """Split into `count` pieces of `numel` elements; the last ones may be shorter or empty."""
    pieces = list(torch.split(tensor, numel))
    return pieces + [tensor[:0]] * (count - len(pieces))


def _pieces(member: Member, arena: Arena, place: Place, tensor: Tensor) -> Pieces:
    """This rank's share of a tensor in the arena, in pieces, each with one view per rank.

    The views are cached, as every training step reduces the same tensors.
    """
    key = (place, tensor.dtype, tensor.numel())
    pieces = arena.pieces.get(key)
    if pieces is None:
        if len(arena.pieces) == _CACHED_PIECES:
            arena.pieces.clear()
        operands = arena.operands(place, tensor)
        shares = [operand.tensor_split(member.size)[member.rank] for operand in operands]
        split = [torch.split(share, PIECE_BYTES // share.element_size()) for share in shares]
        pieces = arena.pieces[key] = list(zip(*split, strict=True))
    return pieces


def _in_place(member: Member, pieces: Pieces, operator: Operator) -> Steps[None]:
    """Reduce this rank's share of the elements in place, and write it to all ranks."""
    for piece in pieces:
        result = piece[0]
        operator.reduce(piece, out=result)
        for copy in piece[1:]:
            copy.copy_(result)
    yield from member.barrier()


class ChunkShare(NamedTuple):
    """A rank's part of the work on a chunk, which lies in the staging buffers of one turn.

    Attributes:
        splits: the numbers of elements before, in and after the rank's share.
        before, behind: places for the parts of its operand that others reduce.
        lower, higher: its share of the operands of lower and higher ranks.
        result: place for the result of its share.
        whole: the results of all ranks.
    """

    splits: list[int]
    before: Tensor
    behind: Tensor
    lower: list[Tensor]
    higher: list[Tensor]
    result: Tensor
    whole: Tensor


def _share(member: Member, dtype: torch.dtype, numel: int, turn: int) -> ChunkShare:
    """This rank's share of a chunk with `numel` elements; shares consist of whole cache lines."""
    share = member.shares.get((dtype, numel, turn))
    if share is None:
        if len(member.shares) == _CACHED_SHARES:
            member.shares.clear()
        share = member.shares[dtype, numel, turn] = _new_share(member, dtype, numel, turn)
    return share


def _new_share(member: Member, dtype: torch.dtype, numel: int, turn: int) -> ChunkShare:
    buffers, results, _ = member.staging(dtype)
    line = max(1, LINE_BYTES // dtype.itemsize)
    share = -(-numel // (member.size * line)) * line
    low = min(member.rank * share, numel)
    high = min(low + share, numel)
    own, result = buffers[member.rank][turn], results[turn]
    return ChunkShare(
        splits=[low, high - low, numel - high],
        before=own[:low],
        behind=own[high:numel],
        lower=[of_rank[turn][low:high] for of_rank in buffers[: member.rank]],
        higher=[of_rank[turn][low:high] for of_rank in buffers[member.rank + 1 :]],
        result=result[low:high],
        whole=result[:numel],
    )


def staged(member: Member, tensor: Tensor, operator: Operator, *, keep: bool) -> Steps[None]:
    """Reduce chunk by chunk: each rank reduces its share and stages the result for the others.

    Args:
        member: this rank, after `meet`.
        tensor: the operand.
        operator: the reduction.
        keep: whether to write the result into `tensor`.
    """
    chunks = torch.split(tensor, member.staging(tensor.dtype).numel)
    shares = [
        _share(member, tensor.dtype, chunk.numel(), number % 2)
        for number, chunk in enumerate(chunks)
    ]
    pieces = [torch.split(chunk, share.splits) for chunk, share in zip(chunks, shares, strict=True)]

    def contribute(chunk: int) -> None:
        before, _, behind = pieces[chunk]
        shares[chunk].before.copy_(before)
        shares[chunk].behind.copy_(behind)

    def reduce_share(chunk: int) -> None:
        share = shares[chunk]
        own = pieces[chunk][1]
        operator.reduce([*share.lower, own, *share.higher], out=share.result)

    def collect(chunk: int) -> None:
        if keep:
            chunks[chunk].copy_(shares[chunk].whole)

    yield from pipelined(member, len(chunks), contribute, reduce_share, collect)
