"""The other collectives. Three have an algorithm of their own; the rest is made of these.

Each rank publishes what others need, in its slot or chunk by chunk in its staging buffer, and reads
what it needs; see `all_reduce` for how ranks wait for each other. Except by `reduce_scatter` data
is moved as bytes, so any dtype works.

Tensors are 1-D, contiguous and in the memory of the process. No operand may overlap a result,
except where that is said.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpbench.parallel.shm.member import Member, describe, pipelined
from dpbench.parallel.shm.memory import SLOT_BYTES
from dpbench.parallel.shm.operators import Operator


def barrier(member: Member) -> None:
    """Pass when all ranks have called it."""
    member.meet("barrier()")


def broadcast(member: Member, tensor: Tensor, root: int) -> None:
    """Every rank gets the root's tensor.

    Args:
        member: this rank.
        tensor: the root's operand, the result elsewhere.
        root: the rank that sends.
    """
    data = tensor.view(torch.uint8)
    is_root = member.rank == root
    _publish(
        member,
        describe("broadcast", tensor, root=root),
        data if is_root else None,
        {} if is_root else {root: data},
        tensor.nbytes,
    )


def all_gather(member: Member, outputs: Sequence[Tensor], tensor: Tensor) -> None:
    """Every rank gets the tensors of all ranks, which have one size.

    Args:
        member: this rank.
        outputs: the results by rank; this rank's may be `tensor`. Empty where none are wanted.
        tensor: this rank's operand.
    """
    wanted = {rank: output.view(torch.uint8) for rank, output in enumerate(outputs)}
    wanted.pop(member.rank, None)
    if outputs and outputs[member.rank].data_ptr() != tensor.data_ptr():
        outputs[member.rank].copy_(tensor)
    data = tensor.view(torch.uint8)
    _publish(member, describe("all_gather", tensor), data, wanted, tensor.nbytes)


def _publish(
    member: Member, operation: str, mine: Tensor | None, wanted: dict[int, Tensor], nbytes: int
) -> None:
    """Publish bytes, and read those that other ranks publish.

    Args:
        member: this rank.
        operation: as from `describe`.
        mine: what this rank publishes, if anything.
        wanted: where to write what other ranks publish, by rank.
        nbytes: the size of each of these tensors.
    """
    if nbytes <= SLOT_BYTES:
        slots = member.operands(torch.uint8, nbytes)
        if mine is not None:
            slots[member.rank].copy_(mine)
        member.meet(operation)
        for rank, target in wanted.items():
            target.copy_(slots[rank])
        return
    member.meet(operation)
    buffers, _, room = member.staging(torch.uint8)

    def publish(number: int) -> None:
        if mine is not None:
            chunk = mine[number * room :][:room]
            buffers[member.rank][number % 2][: chunk.numel()].copy_(chunk)

    def read(number: int) -> None:
        for rank, target in wanted.items():
            chunk = target[number * room :][:room]
            chunk.copy_(buffers[rank][number % 2][: chunk.numel()])

    pipelined(member, -(-nbytes // room), publish, read)


def reduce_scatter(
    member: Member, inputs: Sequence[Tensor], output: Tensor, operator: Operator
) -> None:
    """Rank r gets the reduction of the r-th inputs of all ranks.

    Args:
        member: this rank.
        inputs: one for each rank, of one size.
        output: the result; it may be this rank's input.
        operator: the reduction.
    """
    me = member.rank
    member.meet(describe("reduce_scatter", output, operator.name))
    buffers, _, room = member.staging(output.dtype)
    # A staging buffer holds a piece for each rank.
    pieces = [torch.split(tensor, room // member.size) for tensor in inputs]
    places = [[torch.split(buffer, room // member.size) for buffer in turns] for turns in buffers]
    targets = torch.split(output, room // member.size)

    def contribute(number: int) -> None:
        for reducer, place in enumerate(places[me][number % 2][: member.size]):
            # The first two operands are combined into the target, which may be the third's memory.
            if reducer != me or me >= 2:
                piece = pieces[reducer][number]
                place[: piece.numel()].copy_(piece)

    def reduce_piece(number: int) -> None:
        target = targets[number]
        operands = [place[number % 2][me][: target.numel()] for place in places]
        if me < 2:
            operands[me] = pieces[me][number]
        operator.reduce(operands, out=target)

    pipelined(member, len(targets), contribute, reduce_piece)


def scatter(member: Member, output: Tensor, whole: Tensor | None = None, *, root: int) -> None:
    """Rank r gets the r-th part of the tensor that the root gives."""
    if whole is None:
        whole = output.new_empty(member.size * output.numel())
    broadcast(member, whole, root)
    output.copy_(whole.tensor_split(member.size)[member.rank])
