"""Memory of the group for tensors that it reduces in place, without copying them anywhere."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpbench.parallel.shm import memory
from dpbench.parallel.shm.descriptor import NOWHERE, Place, pack
from dpbench.parallel.shm.layout import PAGE
from dpbench.parallel.shm.member import Member, Steps


class AllocationFailed(OSError):
    """A rank got no memory. All ranks know, and the group can still be used."""


class Allocation:
    """A part for each rank, one after the other.

    Attributes:
        number: the same on all ranks.
        nbytes: of a part, as asked for.
    """

    def __init__(self, number: int, mapping: mmap.mmap, nbytes: int, stride: int) -> None:
        self.number = number
        self.nbytes = nbytes
        self._mapping = mapping
        whole = memory.as_tensor(mapping)
        parts = len(mapping) // stride
        self.parts = [whole[i * stride : i * stride + nbytes] for i in range(parts)]
        self._stride = stride

    def tensor(self, rank: int) -> Tensor:
        """A rank's part, as bytes, whose storage keeps this allocation."""
        array: Any = (ctypes.c_ubyte * self.nbytes).from_buffer(self._mapping, rank * self._stride)
        array.allocation = self
        return torch.frombuffer(array, dtype=torch.uint8)


class Arena:
    """The allocations of a group that are still in use."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._count = 0
        # An allocation lives as long as its tensor's storage.
        self._alive: weakref.WeakValueDictionary[int, Allocation] = weakref.WeakValueDictionary()

    def add(self, mapping: mmap.mmap, nbytes: int, stride: int) -> Tensor:
        """Register the memory of an allocation; this rank's part of it."""
        allocation = Allocation(self._count, mapping, nbytes, stride)
        self._count += 1
        self._alive[allocation.number] = allocation
        return allocation.tensor(self._rank)

    def place_of(self, tensor: Tensor) -> Place:
        """Where a contiguous tensor lies, NOWHERE if not in this rank's part of an allocation."""
        address = tensor.data_ptr()
        for number, allocation in list(self._alive.items()):
            offset = address - allocation.parts[self._rank].data_ptr()
            if offset >= 0 and offset + tensor.nbytes <= allocation.nbytes:
                return Place(number, offset)
        return NOWHERE

    def operands(self, place: Place, tensor: Tensor) -> list[Tensor]:
        """What lies there in the parts of all ranks, as 1-D tensors like this rank's."""
        allocation = self._alive[place.allocation]
        end = place.offset + tensor.nbytes
        return [part[place.offset : end].view(tensor.dtype) for part in allocation.parts]


def allocate(member: Member, arena: Arena, nbytes: int) -> Steps[Tensor]:
    """New memory in the arena; a collective.

    Raises:
        AllocationFailed: on every rank, if one of them could not get or open the memory.
    """
    stride = max(-(-nbytes // PAGE), 1) * PAGE
    total = stride * member.size
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
        key.copy_(torch.tensor([os.getpid(), descriptor]))
    try:
        yield from member.meet(pack("allocate", numel=nbytes, root=0))
        pid, number = key.tolist()
        try:
            mapping = memory.map_and_close(memory.open_of(pid, number), total)
        except OSError as error:
            problem = problem or error.errno or errno.EIO
        problems = member.operands(torch.int64, 1)
        problems[member.rank].fill_(problem)
        yield from member.meet(pack("allocate", numel=nbytes))
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    codes = [int(code) for code in problems]
    _raise_first(codes, nbytes, member.names)
    assert mapping is not None
    return arena.add(mapping, nbytes, stride)


def _raise_first(codes: Sequence[int], nbytes: int, names: Sequence[str]) -> None:
    for name, code in zip(names, codes, strict=True):
        if code:
            raise AllocationFailed(
                code, f"{name} could not allocate {nbytes} shared bytes per rank"
            )
