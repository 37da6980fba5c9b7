"""Collectives that move data without reducing it: each rank publishes, each reads what it needs.

Tensors here are 1-D, contiguous and in the memory of the process; they travel as bytes, so any
dtype works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from dpbench.parallel.shm.descriptor import Mismatch, pack
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.memory import SLOT_BYTES


class WantedRange(NamedTuple):
    """A range of the bytes that another rank publishes, and where this rank reads it to."""

    publisher: int
    start: int
    target: Tensor


def broadcast(member: Member, tensor: Tensor, root: int) -> Steps[None]:
    """Every rank gets the root's tensor."""
    own = pack("broadcast", tensor.dtype, tensor.numel(), root=root)
    data = _bytes(tensor)
    if member.rank == root:
        yield from _exchange(member, own, [data], [], data.numel())
    else:
        yield from _exchange(member, own, [], [WantedRange(root, 0, data)], data.numel())


def all_gather(member: Member, outputs: Sequence[Tensor], tensor: Tensor) -> Steps[None]:
    """Every rank gets all ranks' tensors, which may differ in size.

    Raises:
        Mismatch: on every rank: they disagree on the sizes.
    """
    counts = [output.numel() for output in outputs]
    if counts.count(counts[0]) < len(counts):
        yield from agree_on_counts(member, "all_gather_v", tensor.dtype, counts)
    own = pack("all_gather", tensor.dtype, max(counts))
    yield from _gather(member, own, outputs, tensor, max(counts) * tensor.itemsize)


def gather(member: Member, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> Steps[None]:
    """The root gets all ranks' tensors; elsewhere `outputs` is empty."""
    own = pack("gather", tensor.dtype, tensor.numel(), root=root)
    yield from _gather(member, own, outputs, tensor, tensor.nbytes)


def scatter(member: Member, output: Tensor, inputs: Sequence[Tensor], root: int) -> Steps[None]:
    """Rank r gets the root's r-th tensor; elsewhere `inputs` is empty."""
    own = pack("scatter", output.dtype, output.numel(), root=root)
    target, total = _bytes(output), output.nbytes * member.size
    if member.rank == root:
        target.copy_(_bytes(inputs[root]))
        yield from _exchange(member, own, [_bytes(piece) for piece in inputs], [], total)
    else:
        wanted = [WantedRange(root, member.rank * output.nbytes, target)]
        yield from _exchange(member, own, [], wanted, total)


def all_to_all(member: Member, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Steps[None]:
    """Rank r gets in outputs[s] what rank s has in inputs[r].

    Raises:
        Mismatch: on every rank: a rank sends another number of elements than its receiver expects.
    """
    dtype = inputs[0].dtype
    sent = yield from _table(member, "all_to_all", dtype, [t.numel() for t in inputs])
    expected = yield from _table(member, "all_to_all", dtype, [t.numel() for t in outputs])
    _require_equal_counts(sent, expected, member.names)
    targets = [_bytes(tensor) for tensor in outputs]
    targets[member.rank].copy_(_bytes(inputs[member.rank]))
    wanted = []
    for peer in _others(member.rank, member.size):
        # Each rank publishes for its successor first, so that all ranks read all the time.
        before = _others(peer, member.size)
        before = before[: before.index(member.rank)]
        start = sum(sent[peer][rank] for rank in before) * dtype.itemsize
        wanted.append(WantedRange(peer, start, targets[peer]))
    published = [_bytes(inputs[peer]) for peer in _others(member.rank, member.size)]
    longest = max(sum(row) - row[rank] for rank, row in enumerate(sent)) * dtype.itemsize
    own = pack("all_to_all", dtype)
    yield from _exchange(member, own, published, wanted, longest)


def agree_on_counts(
    member: Member, kind: str, dtype: torch.dtype, counts: Sequence[int]
) -> Steps[None]:
    """Compare the sizes that each rank receives or sends.

    Raises:
        Mismatch: on every rank: they disagree.
    """
    rows = yield from _table(member, kind, dtype, counts)
    for name, row in zip(member.names, rows, strict=True):
        if row != rows[0]:
            raise Mismatch(
                f"ranks disagree: in {kind.removesuffix('_v')} {member.names[0]} has {rows[0]} "
                f"elements for the ranks, but {name} has {row}"
            )


def _gather(
    member: Member, own: bytes, outputs: Sequence[Tensor], tensor: Tensor, longest: int
) -> Steps[None]:
    data = _bytes(tensor)
    wanted = []
    for rank, output in enumerate(outputs):
        if rank == member.rank:
            _bytes(output).copy_(data)
        else:
            wanted.append(WantedRange(rank, 0, _bytes(output)))
    yield from _exchange(member, own, [data], wanted, longest)


def _exchange(
    member: Member,
    own: bytes,
    published: Sequence[Tensor],
    wanted: Sequence[WantedRange],
    longest: int,
) -> Steps[None]:
    """Publish some bytes and read some of what others publish.

    Args:
        member: this rank.
        own: the descriptor.
        published: tensors of this rank, laid one after the other.
        wanted: ranges that this rank reads.
        longest: the most bytes that any rank publishes; the same number on all ranks.
    """
    if longest <= SLOT_BYTES:
        operands = member.operands(torch.uint8, SLOT_BYTES)
        _write(operands[member.rank], 0, published)
        yield from member.meet(own)
        for publisher, start, target in wanted:
            target.copy_(operands[publisher][start : start + target.numel()])
        return
    yield from member.meet(own)
    buffers, _, nbytes = member.staging(torch.uint8)

    def publish(chunk: int) -> None:
        _write(buffers[member.rank][chunk % 2], chunk * nbytes, published)

    def read(chunk: int) -> None:
        first = chunk * nbytes
        for publisher, start, target in wanted:
            source = buffers[publisher][chunk % 2]
            low = max(start, first)
            high = min(start + target.numel(), first + nbytes)
            if low < high:
                target[low - start : high - start].copy_(source[low - first : high - first])

    yield from pipelined(member, -(-longest // nbytes), publish, read)


def _write(buffer: Tensor, first: int, pieces: Sequence[Tensor]) -> None:
    """Fill a buffer with a part of the concatenated pieces, starting at byte `first`."""
    starts = accumulate((piece.numel() for piece in pieces), initial=-first)
    for start, piece in zip(starts, pieces, strict=False):
        low, high = max(start, 0), min(start + piece.numel(), buffer.numel())
        if low < high:
            buffer[low:high].copy_(piece[low - start : high - start])


def _table(
    member: Member, kind: str, dtype: torch.dtype, row: Sequence[int]
) -> Steps[list[list[int]]]:
    """Gather a row of numbers from every rank."""
    rows = member.operands(torch.int64, member.size)
    rows[member.rank].copy_(torch.tensor(row, dtype=torch.int64, device="cpu"))
    yield from member.meet(pack(kind, dtype))
    return [numbers.tolist() for numbers in rows]


def _require_equal_counts(
    sent: list[list[int]], expected: list[list[int]], names: Sequence[str]
) -> None:
    for sender, row in enumerate(sent):
        for receiver, count in enumerate(row):
            if expected[receiver][sender] != count:
                raise Mismatch(
                    f"ranks disagree: in all_to_all {names[sender]} sends {count} elements to "
                    f"{names[receiver]}, which expects {expected[receiver][sender]}"
                )


def _others(rank: int, size: int) -> list[int]:
    """All ranks except this one, starting with its successor."""
    return [(rank + distance) % size for distance in range(1, size)]


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def pipelined(member: Member, chunks: int, *stages: Callable[[int], None]) -> Steps[None]:
    """Run every stage on every chunk; a stage sees what all ranks did in the stage before it.

    In step t, stage s works on chunk t − s. With two alternating buffers, stage s + 1 reads from
    one what stage s wrote in the step before, while stage s writes to the other.

    Args:
        member: this rank, after `meet`.
        chunks: how many; equal on all ranks, as is the number of stages.
        stages: each called with the numbers of the chunks, in order.
    """
    steps = chunks + len(stages) - 1
    for step in range(steps):
        for number, stage in enumerate(stages):
            if 0 <= step - number < chunks:
                stage(step - number)
        if step < steps - 1:
            yield from member.barrier()
