"""Memory of the group for tensors that it reduces in place, without copying.

Each allocation is a memfd of its own, in which every rank has a part of the same size. All ranks
map all of it, and each unmaps it when its own tensor dies; the kernel frees the pages after the
last. So no rank has to know which allocations the others still use: a collective in place needs a
tensor of every rank at one place, and who has such a tensor has the mapping.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

import torch
from torch import Tensor

from dpbench.parallel.shm import memory
from dpbench.parallel.shm.member import NOWHERE, Member, Place
from dpbench.parallel.shm.memory import PAGE


class AllocationFailed(OSError):
    """There is no memory. All ranks get this error, and the group can still be used."""


class Block:
    """One allocation, as one rank sees it.

    Attributes:
        number: the same on all ranks.
        views: views of it that collectives cache here.
    """

    def __init__(self, number: int, mapping: Any, stride: int, rank: int) -> None:
        """
        Args:
            number: see the attributes.
            mapping: all of the memory, which stays mapped as long as this object.
            stride: bytes of each rank's part.
            rank: this rank.
        """
        self.number = number
        self.views: dict[Any, Any] = {}
        self.start = ctypes.addressof(mapping) + rank * stride
        self._parts = torch.split(memory.as_bytes(mapping), stride)

    def like(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks at the place of this rank's `tensor`, which lies in its part."""
        offset = tensor.data_ptr() - self.start
        return [part[offset : offset + tensor.nbytes].view(tensor.dtype) for part in self._parts]


class Allocations:
    """The allocations of one group that still have a tensor on this rank."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._count = 0
        # By the address at which this rank's part starts, which is that of its tensor's storage.
        self._blocks: dict[int, Block] = {}

    def find(self, tensor: Tensor) -> tuple[Block | None, Place]:
        """The block that holds a contiguous tensor, and its place; None and NOWHERE without."""
        start = tensor.untyped_storage().data_ptr()
        block = self._blocks.get(start)
        if block is None:
            return None, NOWHERE
        return block, (block.number, tensor.data_ptr() - start)

    def allocate(self, nbytes: int) -> Tensor:
        """Allocate memory in which tensors are reduced without being copied; a collective.

        Args:
            nbytes: the size of this rank's part, 1 or more; the same on all ranks.

        Returns:
            uint8, `(nbytes,)`, zeroed, on a page boundary.

        Raises:
            AllocationFailed: on every rank: rank 0 could not get the memory.
        """
        member, stride = self._member, -(-nbytes // PAGE) * PAGE
        total, descriptor, mapping = stride * member.size, -1, None
        key = member.operands(torch.int64, 3)[0]
        try:
            if member.rank == 0:
                number = 0
                try:
                    descriptor = memory.create(total)
                    mapping = memory.map_and_close(os.dup(descriptor), total)
                except OSError as error:
                    number = error.errno or -1
                key.copy_(torch.tensor([os.getpid(), descriptor, number], device="cpu"))
            member.meet(f"allocate({nbytes} bytes)")
            pid, theirs, number = key.tolist()
            if number:
                text = f"{member.names[0]} could not allocate {nbytes} shared bytes per rank"
                raise AllocationFailed(number, text)
            if mapping is None:
                mapping = memory.map_and_close(memory.open_of(pid, theirs), total)
            member.barrier()  # all ranks have opened the memory, so rank 0 may close it
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return self._own_part(Block(self._count, mapping, stride, member.rank), nbytes)

    def _own_part(self, block: Block, nbytes: int) -> Tensor:
        """This rank's part, as a tensor with whose storage the block is forgotten and unmapped."""
        self._count += 1
        self._blocks[block.start] = block
        array = (ctypes.c_ubyte * nbytes).from_address(block.start)
        # The array keeps nothing alive: the entry does, which goes with the array.
        forget = weakref.finalize(array, self._blocks.pop, block.start, None)
        forget.atexit = False
        return memory.as_bytes(array)
