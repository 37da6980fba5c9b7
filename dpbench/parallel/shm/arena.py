"""Memory of the group for tensors that it reduces in place, without copying.

It consists of segments, in which each rank has a part of the same size. A block lies at the same
offset in the parts of all ranks. All ranks agree on the free space: whenever they meet to allocate,
each reports the blocks that it has dropped, and all of them free the same ones. Segments never
move. New ones are added as needed; they take no file descriptors.
"""

from __future__ import annotations

import ctypes
import errno
import os
import weakref
from collections import Counter, deque
from collections.abc import Sequence

import torch
from torch import Tensor

from dpbench.parallel.compilation import not_compiled
from dpbench.parallel.shm import memory
from dpbench.parallel.shm.descriptor import NOWHERE, Place, pack
from dpbench.parallel.shm.engine import engine
from dpbench.parallel.shm.failures import AllocationFailed
from dpbench.parallel.shm.issuer import Issuer
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.memory import PAGE, SLOT_BYTES

# Per rank. Pages are allocated on first touch, so a large segment costs addresses only.
SMALLEST_SEGMENT, LARGEST_STEP = 16 * 1024**2, 1024**3
# Dropped blocks that a rank can report at one meeting; the rest waits for the next.
_REPORTS = SLOT_BYTES // 8 - 1


Pieces = Sequence[tuple[Tensor, ...]]
"""Pieces of a tensor in the arena; each piece as one view per rank."""


class Segment:
    """
    Attributes:
        nbytes: size of each rank's part.
        parts: the parts of all ranks.
        start: the address of this rank's part.
        free: offset and size of each free range, sorted.
    """

    def __init__(self, mapping: memoryview, nbytes: int, rank: int) -> None:
        self.nbytes = nbytes
        self.parts = torch.split(memory.as_tensor(mapping), nbytes)
        self.start = self.parts[rank].data_ptr()
        self.free = [(0, nbytes)]

    def take(self, nbytes: int) -> int | None:
        """Reserve the first free range of this size; returns its offset, or None."""
        for position, (offset, size) in enumerate(self.free):
            if size >= nbytes:
                left = [(offset + nbytes, size - nbytes)] if size > nbytes else []
                self.free[position : position + 1] = left
                return offset
        return None

    def put_back(self, offset: int, nbytes: int) -> None:
        """Free a range that `take` returned."""
        merged: list[tuple[int, int]] = []
        for start, size in sorted([*self.free, (offset, nbytes)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self.free = merged


@not_compiled
class Arena:
    """The memory of one group, as one rank sees it.

    Its methods are not the group's, as compiled code may use only what torch's own groups have.

    Attributes:
        size: number of ranks that share it.
        pieces: views that reductions cache here; valid as long as the arena, which never moves.
    """

    def __init__(self, member: Member, issuer: Issuer) -> None:
        self.size = member.size
        self._member = member
        self._issuer = issuer
        self._segments: list[Segment] = []
        # Places of the blocks that some rank still has, and how many ranks have dropped each.
        self._blocks: dict[int, tuple[int, int, int]] = {}
        self._drops: Counter[int] = Counter()
        self._count = 0
        self.pieces: dict[tuple[Place, torch.dtype, int], Pieces] = {}
        # Filled by finalizers, in any thread.
        self._dropped: deque[int] = deque()

    def allocate(self, nbytes: int) -> Tensor:
        """Allocate memory in which tensors are reduced without being copied; a collective.

        `all_reduce` works in place on tensors that lie at the same offset of it on all ranks.

        Args:
            nbytes: the size of this rank's part; the same on all ranks.

        Returns:
            uint8, `(nbytes,)`, zeroed, on a page boundary. The memory is freed when the storages
            of these tensors are gone, this rank's at once, and used again when all are.

        Raises:
            ValueError: the size is negative.
            OSError: on every rank: one of them could not get the memory.
            torch.distributed.DistBackendError: as for every collective.
        """
        if nbytes < 0:
            raise ValueError(f"got nbytes={nbytes}, expected a number of bytes, 0 or more")
        work = self._issuer.issue("allocate", self.allocation(nbytes))
        work.wait()
        tensor: Tensor = work.value
        return tensor

    def everywhere(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks at the place of this rank's `tensor`, by rank.

        Args:
            tensor: 1-D, contiguous and within what `allocate` returned, of which all ranks have as
                much.

        Raises:
            ValueError: it lies elsewhere.
        """
        place = self.place_of(tensor)
        if place == NOWHERE:
            raise ValueError("got a tensor of other memory, expected one that `allocate` returned")
        return self.operands(place, tensor)

    def poll(self) -> None:
        """Advance pending collectives without waiting; cheap when there are none."""
        engine().poll(self._issuer.collectives)

    def place_of(self, tensor: Tensor) -> Place:
        """Place of a contiguous tensor; NOWHERE if it is not in this rank's part of a segment."""
        address = tensor.data_ptr()
        for number, segment in enumerate(self._segments):
            offset = address - segment.start
            if 0 <= offset <= segment.nbytes - tensor.nbytes:
                return Place(number, offset)
        return NOWHERE

    def operands(self, place: Place, tensor: Tensor) -> list[Tensor]:
        """The memory at this place in the parts of all ranks, as 1-D tensors like this rank's."""
        end = place.offset + tensor.nbytes
        parts = self._segments[place.segment].parts
        return [part[place.offset : end].view(tensor.dtype) for part in parts]

    def allocation(self, nbytes: int) -> Steps[Tensor]:
        """The steps of `allocate`.

        Raises:
            AllocationFailed: on every rank: one of them could not get or open the memory.
        """
        rows = self._member.operands(torch.int64, _REPORTS + 1)
        # The blocks that this rank has dropped and not reported, as many as fit.
        reports = [self._dropped.popleft() for _ in range(min(len(self._dropped), _REPORTS))]
        rows[self._member.rank][: len(reports) + 1].copy_(_numbers([len(reports), *reports]))
        try:
            yield from self._member.meet(pack("allocate", numel=nbytes, root=0))
        except BaseException:
            self._dropped.extendleft(reversed(reports))  # they did not get through
            raise
        self._free([row[1 : 1 + int(row[0])].tolist() for row in rows])
        if not nbytes:
            return memory.as_tensor(bytearray(1))[:0]
        stride = -(-nbytes // PAGE) * PAGE
        number = self._find(stride)
        if number is None:
            held = sum(segment.nbytes for segment in self._segments)
            yield from self._grow(max(stride, SMALLEST_SEGMENT, min(held, LARGEST_STEP)), nbytes)
            number = self._find(stride)
            assert number is not None
        return self._block(number, nbytes)

    def _free(self, reports: Sequence[Sequence[int]]) -> None:
        """Free the blocks that all ranks have dropped.

        Args:
            reports: the report of each rank; in the same order everywhere, so that the free ranges
                are the same too.
        """
        self._drops.update(block for blocks in reports for block in blocks)
        gone = [block for block, ranks in self._drops.items() if ranks == len(reports)]
        for block in sorted(gone):
            del self._drops[block]
            segment, offset, nbytes = self._blocks.pop(block)
            self._segments[segment].put_back(offset, nbytes)

    def _find(self, nbytes: int) -> int | None:
        """The number of a new block, or None if there is no room for it."""
        for number, segment in enumerate(self._segments):
            if (offset := segment.take(nbytes)) is not None:
                self._blocks[self._count] = (number, offset, nbytes)
                self._count += 1
                return self._count - 1
        return None

    def _grow(self, part: int, asked: int) -> Steps[None]:
        """Add a segment with parts of size `part`, for a block of `asked` bytes."""
        member, total = self._member, part * self.size
        key = member.operands(torch.int64, 2)[0]
        descriptor = -1
        mapping, problem = None, 0
        if member.rank == 0:
            try:
                descriptor = memory.create(total)
            except OverflowError:
                problem = errno.EFBIG
            except OSError as error:
                problem = error.errno or errno.EIO
            key.copy_(_numbers([os.getpid(), descriptor]))
        try:
            yield from member.meet(pack("allocate", numel=asked))
            pid, number = key.tolist()
            try:
                if number >= 0:
                    mapping = memory.map_and_close(memory.open_of(pid, number), total)
            except OSError as error:
                problem = problem or error.errno or errno.EIO
            problems = member.operands(torch.int64, 1)
            problems[member.rank].fill_(problem)
            yield from member.meet(pack("allocate", numel=asked))
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        _raise_first([int(code) for code in problems], asked, member.names)
        assert mapping is not None
        self._segments.append(Segment(mapping, part, member.rank))

    def _block(self, number: int, nbytes: int) -> Tensor:
        """This rank's bytes of a block, zeroed; the block lives as long as the tensor's storage."""
        position, offset, stride = self._blocks[number]
        segment = self._segments[position]
        address = segment.start + offset
        array = (ctypes.c_ubyte * nbytes).from_address(address)
        # The segment among the arguments keeps the memory mapped.
        drop = weakref.finalize(
            array, _drop, self._dropped, number, address, stride, os.getpid(), segment
        )
        drop.atexit = False
        return memory.as_tensor(array)


def _drop(
    dropped: deque[int], number: int, address: int, nbytes: int, pid: int, _: Segment
) -> None:
    """Free the pages of a block that this rank has dropped.

    The other ranks may still use their parts, but no operation uses this one: it would need a
    tensor of this rank's.
    """
    # A forked child must not free pages that its parent still uses.
    if os.getpid() == pid:
        memory.give_back(address, nbytes)
        dropped.append(number)


def _numbers(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")


def _raise_first(codes: Sequence[int], nbytes: int, names: Sequence[str]) -> None:
    for name, code in zip(names, codes, strict=True):
        if code:
            raise AllocationFailed(
                code, f"{name} could not allocate {nbytes} shared bytes per rank"
            )
