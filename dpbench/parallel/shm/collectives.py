"""The collectives: blocking functions over memory that all ranks share.

Every element is reduced in the order of the ranks, so all ranks get the same bits. Below, r is this
rank, and the parts of one line happen in this order on every rank. |barrier| passes when all ranks
have arrived, and |enter| is the one that opens every collective. There are three kinds.

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
`enter` no rank is in the previous collective, so the buffers and the tensors of the other ranks may
be overwritten. Slots are written *before* `enter`, while a slow rank may still read those of the
previous collective, so there are two, used in turn; no rank can be two collectives ahead, as it
would have entered one without the slow rank.

Tensors are 1-D, contiguous and in the memory of the process. No operand may overlap a result,
except where that is said. What is not reduced is moved as bytes, so any dtype works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm.memory import LINE_BYTES, SLOT_BYTES, Allocation
from dpbench.parallel.shm.rank import OUTSIDE, ShmRank, operation_text, pipelined

PIECE_BYTES = 256 * 1024
"""Piece of a share that is reduced at a time: two or three operands fit the second-level cache."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A reduction, named as in torch.distributed.ReduceOp, by an elementwise (a, b, out=…)."""

    name: str
    combine: Callable[..., Tensor]

    def reduce(self, operands: Sequence[Tensor], out: Tensor) -> None:
        """Compute ((operands[0] ∘ operands[1]) ∘ operands[2]) …, always in the order of the ranks.

        `out` may be one of the first two operands.
        """
        if len(operands) == 1:
            out.copy_(operands[0])
            return
        self.combine(operands[0], operands[1], out=out)
        for operand in operands[2:]:
            self.combine(out, operand, out=out)
        if self.name == "AVG":
            out.mul_(1 / len(operands))


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


def operator_for(op: Any, dtype: torch.dtype) -> Operator:
    """The reduction that a torch.distributed.ReduceOp names, for tensors of a dtype.

    Raises:
        ValueError: the backend does not have this operator, or not for this dtype.
    """
    # By number: hashing torch's enumeration would take most of the time.
    return _operator_for(int(getattr(op, "op", op)), dtype)


@cache
def _operator_for(number: int, dtype: torch.dtype) -> Operator:
    kind: Any = dist.ReduceOp.RedOpType(number)
    if kind.name not in _FUNCTIONS:
        raise ValueError(f"shm has no reduction {kind}, expected one of {', '.join(_FUNCTIONS)}")
    operator = Operator(kind.name, _FUNCTIONS[kind.name])
    # torch does not list the dtypes of a function, but it refuses the others.
    operands = torch.zeros(3, 1, dtype=dtype, device="cpu")
    try:
        operator.reduce(operands[:2].unbind(), out=operands[2])
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"shm cannot reduce {dtype} with {operator.name}: {error}") from None
    return operator


def barrier(rank: ShmRank) -> None:
    """Pass when all ranks have arrived."""
    rank.enter("barrier()")


def all_reduce(rank: ShmRank, tensor: Tensor, operator: Operator) -> None:
    """Every rank gets the reduction in place of its operand `tensor`."""
    operation = operation_text("all_reduce", tensor, operator.name)
    if tensor.nbytes <= SLOT_BYTES:
        slots = rank.slots(tensor.dtype, tensor.numel())
        slots[rank.rank].copy_(tensor)
        rank.enter(operation)
        operator.reduce(slots, out=tensor)
        return
    allocation, offset = rank.find(tensor)
    if rank.enter(operation, offset) and allocation is not None:
        for operands in _own_pieces(rank, allocation, tensor):
            result = operands[0]
            operator.reduce(operands, out=result)
            for copy in operands[1:]:
                copy.copy_(result)
        rank.barrier()
    else:
        _all_reduce_staged(rank, tensor, operator)


def _own_pieces(
    rank: ShmRank, allocation: Allocation, tensor: Tensor
) -> Sequence[tuple[Tensor, ...]]:
    """This rank's share of the elements, in pieces, each with one view per rank; made once."""
    key = (tensor.data_ptr(), tensor.dtype, tensor.numel())
    pieces = allocation.views.get(key)
    if pieces is None:
        own = tensor.tensor_split(rank.size)[rank.rank]
        shares = [allocation.of_rank(peer, own) for peer in range(rank.size)]
        split = [torch.split(share, PIECE_BYTES // share.element_size()) for share in shares]
        pieces = allocation.views[key] = list(zip(*split, strict=True))
    return pieces


def _all_reduce_staged(rank: ShmRank, tensor: Tensor, operator: Operator) -> None:
    """Reduce chunk by chunk: each rank reduces its share and stages the result for the others."""
    buffers, results, room = rank.large_buffers(tensor.dtype)
    own, chunks = buffers[rank.rank], torch.split(tensor, room)
    line = max(1, LINE_BYTES // tensor.element_size())

    def share(chunk: Tensor) -> slice:
        """This rank's share of a chunk; shares consist of whole cache lines."""
        numel = chunk.numel()
        most = -(-numel // (rank.size * line)) * line
        low = min(rank.rank * most, numel)
        return slice(low, min(low + most, numel))

    def contribute(number: int) -> None:
        chunk, mine, turn = chunks[number], share(chunks[number]), number % 2
        own[turn][: mine.start].copy_(chunk[: mine.start])
        own[turn][mine.stop : chunk.numel()].copy_(chunk[mine.stop :])

    def reduce_share(number: int) -> None:
        mine, turn = share(chunks[number]), number % 2
        operands = [of_rank[turn][mine] for of_rank in buffers]
        operands[rank.rank] = chunks[number][mine]
        operator.reduce(operands, out=results[turn][mine])

    def collect(number: int) -> None:
        chunk = chunks[number]
        chunk.copy_(results[number % 2][: chunk.numel()])

    pipelined(rank, len(chunks), contribute, reduce_share, collect)


def reduce_scatter(rank: ShmRank, operand: Tensor, output: Tensor, operator: Operator) -> None:
    """Rank r gets the reduction of the r-th parts of the operands of all ranks.

    `operand` has one part for each rank, of one size; `output` may be this rank's part.
    """
    me = rank.rank
    allocation, offset = rank.find(operand)
    in_place = rank.enter(operation_text("reduce_scatter", output, operator.name), offset)
    if in_place and allocation is not None:
        targets = torch.split(output, PIECE_BYTES // output.element_size())
        for target, pieces in zip(targets, _own_pieces(rank, allocation, operand), strict=True):
            # The first two operands are combined into the target, which may be the third's memory.
            operands = [p.clone() if r == me >= 2 else p for r, p in enumerate(pieces)]
            operator.reduce(operands, out=target)
        rank.barrier()
        return
    buffers, _, room = rank.large_buffers(output.dtype)
    # A buffer holds a piece for each rank.
    numel = room // rank.size
    parts = [torch.split(part, numel) for part in operand.view(rank.size, output.numel())]
    places = [[torch.split(buffer, numel) for buffer in turns] for turns in buffers]
    outputs = torch.split(output, numel)

    def contribute(number: int) -> None:
        for reducer, place in enumerate(places[me][number % 2][: rank.size]):
            if reducer != me or me >= 2:
                piece = parts[reducer][number]
                place[: piece.numel()].copy_(piece)

    def reduce_piece(number: int) -> None:
        target = outputs[number]
        operands = [place[number % 2][me][: target.numel()] for place in places]
        if me < 2:
            operands[me] = parts[me][number]
        operator.reduce(operands, out=target)

    pipelined(rank, len(outputs), contribute, reduce_piece)


def broadcast(rank: ShmRank, tensor: Tensor, root: int) -> None:
    """Every rank gets the root's tensor: `tensor` is the root's operand, the result elsewhere."""
    data = tensor.view(torch.uint8)
    is_root = rank.rank == root
    _publish(
        rank,
        operation_text("broadcast", tensor, root=root),
        data if is_root else None,
        {} if is_root else {root: data},
        tensor.nbytes,
    )


def all_gather(
    rank: ShmRank,
    outputs: Sequence[Tensor],
    tensor: Tensor,
    whole: Tensor | None = None,
) -> None:
    """Every rank gets the tensors of all ranks, which have one size.

    `outputs` are the results by rank, of which this rank's may be `tensor`; empty where none are
    wanted. If they are the parts of one tensor, on all ranks, that is `whole`.
    """
    data = tensor.view(torch.uint8)
    wanted = {peer: output.view(torch.uint8) for peer, output in enumerate(outputs)}
    mine = wanted.pop(rank.rank, None)
    if mine is not None and mine.data_ptr() != data.data_ptr():
        mine.copy_(data)
    allocation, offset = (None, OUTSIDE) if whole is None else rank.find(whole)
    operation = operation_text("all_gather", tensor)
    if not _publish(rank, operation, data, wanted, tensor.nbytes, offset) or allocation is None:
        return
    for peer, part in wanted.items():
        part.copy_(allocation.of_rank(peer, part))
    rank.barrier()


def _publish(
    rank: ShmRank,
    operation: str,
    mine: Tensor | None,
    wanted: Mapping[int, Tensor],
    nbytes: int,
    offset: int = OUTSIDE,
) -> bool:
    """Publish bytes, and read those that other ranks publish.

    Args:
        rank: this rank.
        operation: as from `operation_text`.
        mine: what this rank publishes, if anything.
        wanted: where to write what other ranks publish, by rank.
        nbytes: the size of each of these tensors.
        offset: of a tensor of the group that has `mine`, and is not to be published if it is large
            and all ranks have theirs there.

    Returns:
        Whether nothing has been published, for that reason.
    """
    if nbytes <= SLOT_BYTES:
        slots = rank.slots(torch.uint8, nbytes)
        if mine is not None:
            slots[rank.rank].copy_(mine)
        rank.enter(operation)
        for peer, target in wanted.items():
            target.copy_(slots[peer])
        return False
    if rank.enter(operation, offset):
        return True
    buffers, _, room = rank.large_buffers(torch.uint8)

    def publish(number: int) -> None:
        if mine is not None:
            chunk = mine[number * room :][:room]
            buffers[rank.rank][number % 2][: chunk.numel()].copy_(chunk)

    def read(number: int) -> None:
        for peer, target in wanted.items():
            chunk = target[number * room :][:room]
            chunk.copy_(buffers[peer][number % 2][: chunk.numel()])

    pipelined(rank, -(-nbytes // room), publish, read)
    return False
