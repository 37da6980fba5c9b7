"""Memory that the processes of a group share, without a name anywhere, and its layout.

One process creates a memfd, and the others open it through /proc/<pid>/fd. Nothing is ever in
/dev/shm, so its size does not matter, and the kernel frees the pages with the last process that
maps them, however that process ends. The memory of a group holds

    left          per rank: whether it has left the group
    semaphores    per ordered pair of ranks: one
    slots         per rank: two for small operations, used in turn, each with a header
    buffers       for large ones, used in turn: two times a buffer per rank and one for results
    allocations   of all ranks; each extends the memory

Pages are taken when they are first touched: two chunks per rank, and two more, once a group has
done a large collective.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

HEADER_BYTES = 128
SLOT_BYTES = 64 * 1024
"""Largest operand of an operation that needs only one barrier."""
MIN_CHUNK = 1024 * 1024
"""Smallest chunk; two of them fit into the second-level cache of a core."""
MIN_SHARE = 64 * 1024
"""Smallest share of a chunk that a rank reduces; for less, calls take longer than computing."""
PIECE_BYTES = 256 * 1024
"""Piece of an allocation that is reduced at a time: two or three operands fit the same cache."""
LINE_BYTES = 64
"""A cache line. Each semaphore has one of its own; glibc's sem_t has 32 bytes."""
PAGE_BYTES = mmap.PAGESIZE
MFD_CLOEXEC = 1  # of linux/memfd.h
# Number of small operands, and of tensors in an allocation, whose views are kept: every training
# step asks for the same ones.
_CACHED_VIEWS = 256
# Not os.memfd_create, which a Python that was built for older systems lacks, such as uv's.
_libc = ctypes.CDLL(None, use_errno=True)


def create_memory(size: int) -> int:
    """Create the memory of a group of `size` ranks, and return its descriptor.

    Raises:
        OSError: there is no such memory, or the process has no descriptors left.
    """
    descriptor: int = _libc.memfd_create(b"dpbench-shm", MFD_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.ftruncate(descriptor, sum(_sections(size)))
    return descriptor


def open_memory(pid: int, descriptor: int) -> int:
    """Open memory that another process created, and return a descriptor of our own.

    Raises:
        OSError: the process is gone, or belongs to another user.
    """
    return os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def _sections(size: int) -> list[int]:
    """Bytes of all but the allocations, in their order; each section begins on a page boundary."""
    # A slot holds a header and the operand, on pages of its own.
    chunk = _pages(max(MIN_CHUNK, size * MIN_SHARE))
    slot = PAGE_BYTES + SLOT_BYTES
    return [_pages(size), _pages(size * size * LINE_BYTES), 2 * size * slot, 2 * (size + 1) * chunk]


class GroupMemory:
    """The memory of a group, as one rank maps it.

    Attributes:
        size, rank: the number of ranks in the group, and the rank of this one.
        left: by rank, whether it has left the group.
        headers: by turn and rank, HEADER_BYTES each.
        slots: from a dtype, a number of elements and a turn to the operands by rank.
        buffers: from a dtype to the buffers by rank and turn; those for results are last.
    """

    def __init__(self, size: int, rank: int, descriptor: int) -> None:
        """Map the memory; `close` closes the descriptor.

        Raises:
            OSError: the process has no address space left.
        """
        self.size, self.rank, self._descriptor, self._pid = size, rank, descriptor, os.getpid()
        sections = _sections(size)
        self._end = sum(sections)
        mapping = mmap.mmap(descriptor, self._end)
        view = memoryview(mapping)
        _, semaphores, slots, buffers = torch.split(_as_bytes(mapping), sections)
        self.left = view[:size]
        self._semaphores = semaphores[: size * size * LINE_BYTES].view(size, size, LINE_BYTES)
        slots = slots.view(size, 2, -1)
        self.headers = [
            [view[slot.storage_offset() :][:HEADER_BYTES] for slot in slots[:, turn]]
            for turn in (0, 1)
        ]
        self.slots = lru_cache(_CACHED_VIEWS)(partial(_slots, slots[:, :, PAGE_BYTES:]))
        self.buffers = cache(partial(_buffers, buffers.view(size + 1, 2, -1)))
        # The offsets and the pieces of allocations that still have a tensor on this rank, by the
        # address at which its part starts, which is that of the tensor's storage.
        self._allocations: dict[int, tuple[int, Callable[..., Any]]] = {}

    def semaphore(self, poster: int, taker: int) -> ctypes.c_void_p:
        """The semaphore that one rank posts and another one takes, for functions of libc."""
        return ctypes.c_void_p(self._semaphores[poster, taker].data_ptr())

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that mapped it, and none forked from it."""
        return os.getpid() == self._pid

    def allocate(self, nbytes: int) -> Tensor:
        """Extend the memory by a part of `nbytes`, 1 or more, for each rank; all ranks do.

        They reduce in place what lies there. All ranks map all parts, and the pages of a part are
        freed with the tensor of its rank. So no rank has to know which allocations the others still
        use: a collective in place needs a tensor of every rank at one offset, and a rank that has
        such a tensor has the mapping.

        Returns:
            This rank's part: uint8, `(nbytes,)`, zeroed, on a page boundary.

        Raises:
            OSError: this process cannot have so much memory.
        """
        stride, offset = _pages(nbytes), self._end
        self._end += stride * self.size
        os.ftruncate(self._descriptor, self._end)
        mapping = mmap.mmap(self._descriptor, stride * self.size, offset=offset)
        parts = torch.split(_as_bytes(mapping), stride)
        address = parts[self.rank].data_ptr()
        self._allocations[address] = offset, lru_cache(_CACHED_VIEWS)(partial(_pieces, parts))
        # Its buffer keeps nothing but the mapping alive; the entry goes with it.
        begin = self.rank * stride
        part = memoryview(mapping)[begin:][:nbytes]
        free = weakref.finalize(part, self._free, address, mapping, begin, stride)
        free.atexit = False  # the kernel frees everything
        return torch.frombuffer(part, dtype=torch.uint8)

    def _free(self, address: int, mapping: mmap.mmap, begin: int, stride: int) -> None:
        """Forget an allocation, and free this rank's pages of it; a forked child keeps them."""
        del self._allocations[address]
        if self.is_own_process:
            mapping.madvise(mmap.MADV_REMOVE, begin, stride)

    def locate(self, tensor: Tensor) -> tuple[Pieces | None, int]:
        """For a tensor in an allocation, what all ranks have there, and the offset in the group's
        memory; None and -1 for one outside of all."""
        address = tensor.untyped_storage().data_ptr()
        if (allocation := self._allocations.get(address)) is None:
            return None, -1
        offset, pieces = allocation
        within = tensor.data_ptr() - address
        return partial(pieces, within, tensor.dtype), offset + within

    def close(self) -> None:
        """Close the descriptor; what is mapped stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


Pieces = Callable[[int, int], Sequence[tuple[Tensor, ...]]]
"""Views of what the ranks have where this rank has a tensor in an allocation.

From the first element and the number of elements to their pieces, of PIECE_BYTES or less; for each
piece the view of each rank's, by rank.
"""


def _pieces(
    parts: Sequence[Tensor], offset: int, dtype: torch.dtype, begin: int, numel: int
) -> Sequence[tuple[Tensor, ...]]:
    views = [part[offset:].view(dtype)[begin:][:numel] for part in parts]
    step = PIECE_BYTES // dtype.itemsize
    return list(zip(*(torch.split(view, step) for view in views), strict=True))


def _pages(nbytes: int) -> int:
    """Round a number of bytes up to whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def _as_bytes(mapping: mmap.mmap) -> Tensor:
    """The whole mapping as a uint8 tensor, whose storage keeps it mapped."""
    return torch.frombuffer(mapping, dtype=torch.uint8)


def _slots(slots: Tensor, dtype: torch.dtype, numel: int, turn: int) -> list[Tensor]:
    return [slot[: numel * dtype.itemsize].view(dtype) for slot in slots[:, turn]]


def _buffers(buffers: Tensor, dtype: torch.dtype) -> list[list[Tensor]]:
    return [[buffer.view(dtype) for buffer in turns] for turns in buffers]
