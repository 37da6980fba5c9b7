"""Memory that several processes see and that has no name anywhere.

A memfd is opened by the others through /proc/<pid>/fd. Nothing is ever in /dev/shm, whose size
does not matter either, and the kernel frees the pages with the last process that maps them,
however it ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import torch
from torch import Tensor


def create(nbytes: int) -> int:
    """A descriptor of new memory, zeroed; pages are taken when they are first touched."""
    descriptor = os.memfd_create("dpbench-shm", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, nbytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_of(pid: int, descriptor: int) -> int:
    """A descriptor of our own for memory that another process created.

    Raises:
        OSError: that process is gone, or belongs to another user.
    """
    return os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def map_and_close(descriptor: int, nbytes: int) -> mmap.mmap:
    """Map all of it; unmapped when the last reference is gone, those of tensors included."""
    try:
        return mmap.mmap(descriptor, nbytes)
    finally:
        os.close(descriptor)


def as_tensor(memory: mmap.mmap) -> Tensor:
    """All of it as bytes; the tensor's storage keeps the mapping."""
    with torch.inference_mode(False):
        return torch.frombuffer(memory, dtype=torch.uint8)


def alias(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor as a flat one that may be written in any mode of torch."""
    with torch.inference_mode(False):
        if tensor.numel() == 0:
            return torch.empty(0, dtype=tensor.dtype, device="cpu")
        array: Any = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
        array.owner = tensor  # as long as the alias lives
        return torch.frombuffer(array, dtype=torch.uint8).view(tensor.dtype)
