"""All-reduce, reduce and reduce-scatter of contiguous tensors in the memory of the process.

Every element is reduced by one rank, in the order of the ranks, so all get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dpbench.parallel.shm.arena import Arena
from dpbench.parallel.shm.descriptor import NOWHERE, pack, places
from dpbench.parallel.shm.layout import SLOT_BYTES, STAGING_BYTES
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.operators import Operator
from dpbench.parallel.shm.pipeline import pipelined

# What a rank reduces at a time in place: two operands of it stay in the second-level cache.
IN_PLACE_BYTES = 256 * 1024


def all_reduce(member: Member, arena: Arena, tensor: Tensor, operator: Operator) -> Steps[None]:
    """Every rank gets the reduction in place of its operand.

    Args:
        member: this rank.
        arena: in which the operand may lie; if all ranks' do, at one place, nothing is copied.
        tensor: 1-D, contiguous.
        operator: what to do.
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
        yield from _in_place(member, arena.operands(place, tensor), operator)
    else:
        yield from _staged(member, tensor, operator, keep=True)


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
    yield from _staged(member, tensor, operator, keep=keep)


def reduce_scatter(
    member: Member, inputs: Sequence[Tensor], output: Tensor, operator: Operator
) -> Steps[None]:
    """Rank r gets the reduction of all ranks' r-th input.

    Args:
        member: this rank.
        inputs: one for each rank; 1-D, contiguous.
        output: as the inputs; it may be one of them.
        operator: what to do.
    """
    own = pack("reduce_scatter", output.dtype, output.numel(), operator=operator.code)
    yield from member.meet(own)
    share = STAGING_BYTES // (member.size * output.element_size())
    splits = [torch.split(tensor, share) for tensor in inputs]
    chunks = list(zip(*splits, strict=True)) if output.numel() else []
    targets = torch.split(output, share)
    contribute, reduced = _stages(member, chunks, operator, lambda chunk: targets[chunk])
    yield from pipelined(member, len(chunks), contribute, reduced)


def _in_place(member: Member, operands: Sequence[Tensor], operator: Operator) -> Steps[None]:
    """Reduce one's share of the elements where they are, and write it to all ranks."""
    shares = [operand.tensor_split(member.size)[member.rank] for operand in operands]
    pieces = [torch.split(share, IN_PLACE_BYTES // share.element_size()) for share in shares]
    for chunk in zip(*pieces, strict=True):
        result = chunk[0]
        operator.reduce(chunk, out=result)
        for copy in chunk[1:]:
            copy.copy_(result)
    yield from member.barrier()


def _staged(member: Member, tensor: Tensor, operator: Operator, *, keep: bool) -> Steps[None]:
    """Each rank reduces its share of each chunk and stages the result for the others.

    Args:
        member: this rank, after `meet`.
        tensor: the operand.
        operator: what to do.
        keep: whether to put the result in its place.
    """
    me, staging = member.rank, member.staging(tensor.dtype)
    share = STAGING_BYTES // (member.size * tensor.element_size())
    chunks = [chunk.tensor_split(member.size) for chunk in torch.split(tensor, share * member.size)]

    def result(chunk: int, rank: int) -> Tensor:
        start = rank * share
        return staging[rank][chunk % 2][start : start + chunks[chunk][rank].numel()]

    contribute, reduced = _stages(member, chunks, operator, lambda chunk: result(chunk, me))

    def reduce_share(chunk: int) -> None:
        reduced(chunk)
        if keep:
            chunks[chunk][me].copy_(result(chunk, me))

    def collect(chunk: int) -> None:
        if keep:
            for rank in range(member.size):
                if rank != me:
                    chunks[chunk][rank].copy_(result(chunk, rank))

    yield from pipelined(member, len(chunks), contribute, reduce_share, collect)


def _stages(
    member: Member,
    chunks: Sequence[Sequence[Tensor]],
    operator: Operator,
    target: Callable[[int], Tensor],
) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """To stage what the other ranks reduce of a chunk, and to reduce one's own share of it.

    Args:
        member: this rank.
        chunks: of each, what each rank is to reduce.
        operator: what to do.
        target: where the reduction of a chunk goes.
    """
    me = member.rank
    dtype = chunks[0][0].dtype if chunks else torch.uint8
    staging = member.staging(dtype)
    share = staging[0][0].numel() // member.size

    def staged(rank: int, chunk: int, reducer: int) -> Tensor:
        start = reducer * share
        return staging[rank][chunk % 2][start : start + chunks[chunk][reducer].numel()]

    def contribute(chunk: int) -> None:
        for reducer in range(member.size):
            if reducer != me:
                staged(me, chunk, reducer).copy_(chunks[chunk][reducer])

    def reduce_share(chunk: int) -> None:
        operands = [
            chunks[chunk][me] if rank == me else staged(rank, chunk, me)
            for rank in range(member.size)
        ]
        operator.reduce(operands, out=target(chunk))

    return contribute, reduce_share
