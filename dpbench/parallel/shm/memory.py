"""Memory that several processes share and that has no name anywhere.

One process creates a memfd, and the others open it through /proc/<pid>/fd. Nothing is ever in
/dev/shm, so its size does not matter, and the kernel frees the pages with the last process that
maps them, however that process ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

import torch
from torch import Tensor

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
