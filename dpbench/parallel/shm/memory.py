"""Memory that the processes of a group share, without a name anywhere, and its layout.

One process creates a memfd, and the others open it through /proc/<pid>/fd. Nothing is ever in
/dev/shm, so its size does not matter, and the kernel frees the pages with the last process that
maps them, however that process ends. The memory of a group holds

    left          per rank: whether it has left the group
    semaphores    per ordered pair of ranks: one
    slots         per rank: two for small operations, used in turn
    buffers       for large ones, used in turn: two times a buffer per rank and one for results
    allocations   of all ranks; each extends the memory

Pages are taken when they are first touched: two chunks per rank, and two more, once a group has
done a large collective.
"""

from __future__ import annotations

import ctypes
import mmap
import os
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
LINE_BYTES = 64
"""A cache line; shares of staged chunks begin at one, so that no two ranks write to the same. Each
semaphore has one of its own; glibc's sem_t has 32 bytes."""
PAGE_BYTES = mmap.PAGESIZE
MFD_CLOEXEC = 1  # of linux/memfd.h
# Not os.memfd_create, which a Python that was built for older systems lacks, such as uv's.
_libc = ctypes.CDLL(None, use_errno=True)


def create_memory(layout: Layout) -> int:
    """Create the memory of a group, with its semaphores, and return its descriptor.

    Raises:
        OSError: there is no such memory, or the process has no descriptors left.
    """
    descriptor: int = _libc.memfd_create(b"dpbench-shm", MFD_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.ftruncate(descriptor, layout.nbytes)
    mapped = as_bytes(mmap.mmap(descriptor, layout.nbytes))
    for poster in range(layout.size):
        for taker in range(layout.size):
            semaphore = ctypes.c_void_p(mapped.data_ptr() + layout.semaphore(poster, taker))
            if _libc.sem_init(semaphore, 1, 0):
                raise OSError("sem_init failed: this system has no semaphores between processes")
    return descriptor


def open_memory(pid: int, descriptor: int) -> int:
    """Open memory that another process created, and return a descriptor of our own.

    Raises:
        OSError: the process is gone, or belongs to another user.
    """
    return os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def as_bytes(mapping: mmap.mmap) -> Tensor:
    """The whole mapping as a uint8 tensor, whose storage keeps it mapped."""
    return torch.frombuffer(mapping, dtype=torch.uint8)


class Layout:
    """Offsets in bytes. Slots and buffers begin on page boundaries.

    Attributes:
        size: ranks.
        chunk_bytes: of a buffer for large operations.
        nbytes: of all.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.chunk_bytes = pages(max(MIN_CHUNK, size * MIN_SHARE))
        self._semaphores = pages(size)
        self._slots = self._semaphores + pages(size * size * LINE_BYTES)
        # A slot holds a header and the operand, on pages of its own.
        self._slot_bytes = PAGE_BYTES + SLOT_BYTES
        self._buffers = self._slots + 2 * size * self._slot_bytes
        self.nbytes = self._buffers + 2 * (size + 1) * self.chunk_bytes

    def semaphore(self, poster: int, taker: int) -> int:
        return self._semaphores + (poster * self.size + taker) * LINE_BYTES

    def header_of(self, rank: int, turn: int) -> int:
        return self._slots + (2 * rank + turn) * self._slot_bytes

    def operand_of(self, rank: int, turn: int) -> int:
        return self.header_of(rank, turn) + PAGE_BYTES

    def buffer_of(self, rank: int, turn: int) -> int:
        """Offset of a buffer for one chunk; `rank=size` means the buffer for results."""
        return self._buffers + (2 * rank + turn) * self.chunk_bytes


class Allocation:
    """Memory for a tensor of each rank that the group reduces in place, as one rank sees it.

    It extends the memory of the group by a part of the same size for every rank. All ranks map all
    of it, and the pages of a part are freed with the tensor of its rank. So no rank has to know
    which allocations the others still use: a collective in place needs a tensor of every rank at
    one offset, and a rank that has such a tensor has the mapping.

    Attributes:
        offset: in the memory of the group; the same on all ranks.
        address: of this rank's part.
        views: views of it that collectives cache here.
    """

    def __init__(self, mapping: mmap.mmap, offset: int, stride: int, rank: int) -> None:
        """`mapping` stays mapped as long as this object; `stride` is the size of a rank's part."""
        self.offset = offset
        self.views: dict[Any, Any] = {}
        self._parts = torch.split(as_bytes(mapping), stride)
        self.address = self._parts[rank].data_ptr()

    def of_rank(self, rank: int, tensor: Tensor) -> Tensor:
        """The tensor of a rank where this rank has `tensor`, which lies in its part."""
        offset = tensor.data_ptr() - self.address
        return self._parts[rank][offset : offset + tensor.nbytes].view(tensor.dtype)


def pages(nbytes: int) -> int:
    """Round a number of bytes up to whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES
