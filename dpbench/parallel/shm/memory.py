"""Memory that several processes share and that has no name anywhere, and its layout for a group.

One process creates a memfd, and the others open it through /proc/<pid>/fd. Nothing is ever in
/dev/shm, so its size does not matter, and the kernel frees the pages with the last process that
maps them, however that process ends. The memory of a group holds

    state      per rank: whether it has left or given up, and why
    flags      per ordered pair of ranks
    slots      per rank: two for small operations, used in turn
    staging    for large ones, used in turn: two times a buffer per rank and one for results

Pages are taken when they are first touched: two chunks per rank, and two more, once a group has
done a large collective.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from dataclasses import dataclass
from typing import Any, Self

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
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MAP_FAILED = ctypes.c_void_p(-1).value

STATE_BYTES = 512
DESCRIPTOR_BYTES = 64
SLOT_BYTES = 64 * 1024
"""Largest operand of an operation that needs only one exchange of flags."""
SMALLEST_CHUNK = 1024 * 1024
"""Smallest chunk; two of them fit into the second-level cache of a core."""
SMALLEST_SHARE = 64 * 1024
"""Smallest share of a chunk that a rank reduces; for less, calls take longer than computing."""
LINE_BYTES = 64
"""A cache line; shares begin at one, so that no two ranks write to the same."""
PIECE_BYTES = 256 * 1024
"""Piece of a share that is reduced at a time: two or three operands fit the second-level cache."""
PAGE = 4096


def create(nbytes: int) -> int:
    """Create zeroed memory and return its descriptor; pages are allocated on first touch."""
    descriptor = os.memfd_create("dpbench-shm", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, nbytes)
    except (OSError, OverflowError):
        os.close(descriptor)
        raise
    return descriptor


def open_of(pid: int, descriptor: int) -> int:
    """Open memory that another process created, and return a descriptor of our own.

    Raises:
        OSError: the process is gone, or belongs to another user.
    """
    return os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def map_and_close(descriptor: int, nbytes: int) -> memoryview:
    """Map all of the memory; it is unmapped with the last reference, including those of tensors.

    The mapping holds no file descriptor, of which a process has few; Python's mmap module would.
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
    return memoryview(array).cast("B")


def as_tensor(memory: Any) -> Tensor:
    """The whole buffer as bytes; the tensor's storage keeps it alive."""
    with torch.inference_mode(False):
        return torch.frombuffer(memory, dtype=torch.uint8)


def give_back(address: int, nbytes: int) -> None:
    """Free whole pages of shared memory; they stay mapped, and read as zeros from now on."""
    if _libc.madvise(address, nbytes, mmap.MADV_REMOVE):
        ctypes.memset(address, 0, nbytes)


def alias(tensor: Tensor) -> Tensor:
    """A flat tensor in the memory of a contiguous one that may be written in any mode of torch."""
    with torch.inference_mode(False):
        if tensor.numel() == 0:
            return torch.empty(0, dtype=tensor.dtype, device="cpu")
        array: Any = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
        array.owner = tensor  # keeps it alive as long as the alias
        return torch.frombuffer(array, dtype=torch.uint8).view(tensor.dtype)


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes, all on page boundaries."""

    size: int
    flags: int
    slots: int
    slot_bytes: int
    staging: int
    chunk_bytes: int
    nbytes: int

    @classmethod
    def of(cls, size: int) -> Self:
        """The layout for a group of `size` ranks."""
        flags = _pages(size * STATE_BYTES)
        slots = flags + _pages(size * size * semaphores.SIZE)
        # A slot holds the descriptor, a number per rank, and the operand.
        slot_bytes = _pages(DESCRIPTOR_BYTES + 8 * size) + SLOT_BYTES
        staging = slots + 2 * size * slot_bytes
        chunk_bytes = max(SMALLEST_CHUNK, size * SMALLEST_SHARE)
        nbytes = staging + 2 * (size + 1) * chunk_bytes
        return cls(size, flags, slots, slot_bytes, staging, chunk_bytes, nbytes)

    def state_of(self, rank: int) -> int:
        return rank * STATE_BYTES

    def collective_flag(self, poster: int, waiter: int) -> int:
        return self.flags + (poster * self.size + waiter) * semaphores.SIZE

    def slot_of(self, rank: int, turn: int) -> int:
        return self.slots + (2 * rank + turn) * self.slot_bytes

    def operand_of(self, rank: int, turn: int) -> int:
        return self.slot_of(rank, turn) + self.slot_bytes - SLOT_BYTES

    def staging_of(self, rank: int, turn: int) -> int:
        """Offset of a buffer for one chunk; `rank=size` means the buffer for results."""
        return self.staging + (2 * rank + turn) * self.chunk_bytes


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
