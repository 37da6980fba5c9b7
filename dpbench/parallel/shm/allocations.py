"""Memory of the group for tensors that it reduces in place, without copying.

Each allocation extends the memory of the group by a part of the same size for every rank. All ranks
map all of it, and the pages of a part are freed with the tensor of its rank. So no rank has to know
which allocations the others still use: a collective in place needs a tensor of every rank at one
offset, and a rank that has such a tensor has the mapping.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import torch
from torch import Tensor

from dpbench.parallel.shm.memory import as_bytes, pages
from dpbench.parallel.shm.rank import OUTSIDE, ShmRank


class Allocation:
    """One allocation, as one rank sees it.

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


class Allocations:
    """The allocations of one group that still have a tensor on this rank."""

    def __init__(self, rank: ShmRank) -> None:
        self._rank = rank
        self._end = rank.layout.nbytes
        # By the address at which this rank's part starts, which is that of its tensor's storage.
        self._allocations: dict[int, Allocation] = {}

    def find(self, tensor: Tensor) -> tuple[Allocation | None, int]:
        """The allocation that holds a contiguous tensor, and its offset; else None, OUTSIDE."""
        start = tensor.untyped_storage().data_ptr()
        allocation = self._allocations.get(start)
        if allocation is None:
            return None, OUTSIDE
        return allocation, allocation.offset + tensor.data_ptr() - start

    def allocate(self, nbytes: int) -> Tensor:
        """Allocate a part of `nbytes`, 1 or more, for each rank; a collective.

        Returns:
            This rank's part: uint8, `(nbytes,)`, zeroed, on a page boundary.

        Raises:
            OSError: this process cannot have so much memory.
        """
        rank, stride, offset = self._rank, pages(nbytes), self._end
        end = offset + stride * rank.size
        os.ftruncate(rank.descriptor, end)
        mapping = mmap.mmap(rank.descriptor, end - offset, offset=offset)
        rank.enter(f"allocate({nbytes} bytes)")
        self._end = end
        allocation = Allocation(mapping, offset, stride, rank.rank)
        self._allocations[allocation.address] = allocation
        # Its buffer keeps nothing but the mapping alive; the entry goes with it.
        part = memoryview(mapping)[rank.rank * stride :][:nbytes]
        free = weakref.finalize(
            part, self._free, allocation.address, mapping, rank.rank * stride, stride
        )
        free.atexit = False  # the kernel frees everything
        return torch.frombuffer(part, dtype=torch.uint8)

    def _free(self, start: int, mapping: mmap.mmap, offset: int, stride: int) -> None:
        """Forget an allocation, and free this rank's pages of it; a forked child keeps them."""
        del self._allocations[start]
        if self._rank.is_own_process:
            mapping.madvise(mmap.MADV_REMOVE, offset, stride)
