"""Memory of the group for tensors that it reduces in place, without copying.

Each allocation extends the memory of the group by a part of the same size for every rank. All ranks
map all of it, and the pages of a part are freed with the tensor of its rank. So no rank has to know
which allocations the others still use: a collective in place needs a tensor of every rank at one
place, and a rank that has such a tensor has the mapping.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import torch
from torch import Tensor

from dpbench.parallel.shm.member import NOWHERE, Member
from dpbench.parallel.shm.memory import as_bytes, pages


class Block:
    """One allocation, as one rank sees it.

    Attributes:
        offset: in the memory of the group; the same on all ranks.
        start: the address of this rank's part.
        views: views of it that collectives cache here.
    """

    def __init__(self, mapping: mmap.mmap, offset: int, stride: int, rank: int) -> None:
        """
        Args:
            mapping: all of the memory, which stays mapped as long as this object.
            offset: see the attributes.
            stride: bytes of each rank's part.
            rank: this rank.
        """
        self.offset = offset
        self.views: dict[Any, Any] = {}
        self._parts = torch.split(as_bytes(mapping), stride)
        self.start = self._parts[rank].data_ptr()

    def like(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks at the place of this rank's `tensor`, which lies in its part."""
        offset = tensor.data_ptr() - self.start
        return [part[offset : offset + tensor.nbytes].view(tensor.dtype) for part in self._parts]


class Allocations:
    """The allocations of one group that still have a tensor on this rank."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._end = member.layout.nbytes
        # By the address at which this rank's part starts, which is that of its tensor's storage.
        self._blocks: dict[int, Block] = {}

    def find(self, tensor: Tensor) -> tuple[Block | None, int]:
        """The block that holds a contiguous tensor, and its place; None and NOWHERE without."""
        start = tensor.untyped_storage().data_ptr()
        block = self._blocks.get(start)
        if block is None:
            return None, NOWHERE
        return block, block.offset + tensor.data_ptr() - start

    def allocate(self, nbytes: int) -> Tensor:
        """Allocate memory in which tensors are reduced without being copied; a collective.

        Args:
            nbytes: the size of this rank's part, 1 or more; the same on all ranks.

        Returns:
            uint8, `(nbytes,)`, zeroed, on a page boundary.

        Raises:
            OSError: this process cannot have so much memory.
        """
        member, stride, offset = self._member, pages(nbytes), self._end
        end = offset + stride * member.size
        os.ftruncate(member.descriptor, end)
        mapping = mmap.mmap(member.descriptor, end - offset, offset=offset)
        member.meet(f"allocate({nbytes} bytes)")
        self._end = end
        block = Block(mapping, offset, stride, member.rank)
        self._blocks[block.start] = block
        # Its buffer keeps nothing but the mapping alive; the entry goes with it.
        part = memoryview(mapping)[member.rank * stride :][:nbytes]
        free = weakref.finalize(
            part, self._free, block.start, mapping, member.rank * stride, stride
        )
        free.atexit = False  # the kernel frees everything
        return torch.frombuffer(part, dtype=torch.uint8)

    def _free(self, start: int, mapping: mmap.mmap, offset: int, stride: int) -> None:
        """Forget a block, and free the pages of this rank's part; a forked child keeps them."""
        del self._blocks[start]
        if self._member.is_own_process:
            mapping.madvise(mmap.MADV_REMOVE, offset, stride)
