"""Memory that several processes see and that has no name anywhere.

A memfd is opened by the others through /proc/<pid>/fd. Nothing is ever in /dev/shm, whose size
does not matter either, and the kernel frees the pages with the last process that maps them,
however it ends.
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
    """A descriptor of new memory, zeroed; pages are taken when they are first touched."""
    descriptor = os.memfd_create("dpbench-shm", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, nbytes)
    except (OSError, OverflowError):
        os.close(descriptor)
        raise
    return descriptor


def open_of(pid: int, descriptor: int) -> int:
    """A descriptor of our own for memory that another process created.

    Raises:
        OSError: that process is gone, or belongs to another user.
    """
    return os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def map_and_close(descriptor: int, nbytes: int) -> memoryview:
    """Map all of it; unmapped when the last reference is gone, those of tensors included.

    The mapping takes no descriptor, of which a process has few; one of the module mmap would.
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
    unmap.atexit = False  # at exit the kernel does it, after all that may still look
    return memoryview(array).cast("B")


def as_tensor(memory: Any) -> Tensor:
    """All of a buffer as bytes; the tensor's storage keeps it."""
    with torch.inference_mode(False):
        return torch.frombuffer(memory, dtype=torch.uint8)


def give_back(address: int, nbytes: int) -> None:
    """Free whole pages of shared memory; they stay mapped, and read as zeros from now on."""
    if _libc.madvise(address, nbytes, mmap.MADV_REMOVE):
        ctypes.memset(address, 0, nbytes)


def alias(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor as a flat one that may be written in any mode of torch."""
    with torch.inference_mode(False):
        if tensor.numel() == 0:
            return torch.empty(0, dtype=tensor.dtype, device="cpu")
        array: Any = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
        array.owner = tensor  # as long as the alias lives
        return torch.frombuffer(array, dtype=torch.uint8).view(tensor.dtype)
