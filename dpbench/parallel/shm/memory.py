"""Memory that the processes of a group share, without a name anywhere, and its layout.

One process creates a memfd, and the others open it through /proc/<pid>/fd. Nothing is ever in
/dev/shm, so its size does not matter, and the kernel frees the pages with the last process that
maps them, however that process ends. The memory of a group holds

    state         per rank: whether it has left the group or given up, and why
    semaphores    per ordered pair of ranks: one
    slots         per rank: two for small operations, used in turn
    staging       for large ones, used in turn: two times a buffer per rank and one for results

Pages are taken when they are first touched: two chunks per rank, and two more, once a group has
done a large collective.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

import torch
from torch import Tensor

from dpbench.parallel.shm import semaphores

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value

STATE_BYTES = 512
DESCRIPTOR_BYTES = 128
SLOT_BYTES = 64 * 1024
"""Largest operand of an operation that needs only one barrier."""
SMALLEST_CHUNK = 1024 * 1024
"""Smallest chunk; two of them fit into the second-level cache of a core."""
SMALLEST_SHARE = 64 * 1024
"""Smallest share of a chunk that a rank reduces; for less, calls take longer than computing."""
LINE_BYTES = 64
"""A cache line; shares begin at one, so that no two ranks write to the same."""
PAGE = 4096


def create(nbytes: int) -> int:
    """Create zeroed memory and return its descriptor.

    Raises:
        OSError: there is no such memory, or the kernel has no descriptors left.
    """
    descriptor = os.memfd_create("dpbench-shm", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, nbytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_of(pid: int, descriptor: int) -> int:
    """Open memory that another process created, and return a descriptor of our own.

    Raises:
        OSError: the process is gone, or belongs to another user.
    """
    return os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def map_and_close(descriptor: int, nbytes: int) -> Any:
    """Map all of the memory, as a ctypes array; it is unmapped with the last reference to that.

    The mapping holds no file descriptor, of which a process has few; Python's mmap module would.

    Raises:
        OSError: the process has no address space left.
    """
    try:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, nbytes, access, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
    array = (ctypes.c_ubyte * nbytes).from_address(address)
    unmap = weakref.finalize(array, _libc.munmap, address, nbytes)
    unmap.atexit = False  # the kernel unmaps at exit, after all threads that may still read
    return array


def as_bytes(array: Any) -> Tensor:
    """The whole array as a uint8 tensor, whose storage keeps the array alive."""
    return torch.frombuffer(array, dtype=torch.uint8)


class Layout:
    """Offsets in bytes, all on page boundaries.

    Attributes:
        size: ranks.
        chunk_bytes: of a staging buffer.
        nbytes: of all.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.chunk_bytes = _pages(max(SMALLEST_CHUNK, size * SMALLEST_SHARE))
        self._semaphores = _pages(size * STATE_BYTES)
        self._slots = self._semaphores + _pages(size * size * semaphores.SIZE)
        # A slot holds the descriptor and the operand, on pages of its own.
        self._slot_bytes = PAGE + SLOT_BYTES
        self._staging = self._slots + 2 * size * self._slot_bytes
        self.nbytes = self._staging + 2 * (size + 1) * self.chunk_bytes

    def state_of(self, rank: int) -> int:
        return rank * STATE_BYTES

    def semaphore(self, poster: int, taker: int) -> int:
        return self._semaphores + (poster * self.size + taker) * semaphores.SIZE

    def descriptor_of(self, rank: int, turn: int) -> int:
        return self._slots + (2 * rank + turn) * self._slot_bytes

    def operand_of(self, rank: int, turn: int) -> int:
        return self.descriptor_of(rank, turn) + PAGE

    def staging_of(self, rank: int, turn: int) -> int:
        """Offset of a buffer for one chunk; `rank=size` means the buffer for results."""
        return self._staging + (2 * rank + turn) * self.chunk_bytes


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
