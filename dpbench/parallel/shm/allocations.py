"""Memory of the group for tensors that it reduces in place, without copying.

Each allocation extends the memory of the group by a part of the same size for every rank. All ranks
map all of it, and the pages of a part are freed with the tensor of its rank. So no rank has to know
which allocations the others still use: a collective in place needs a tensor of every rank at one
offset, and a rank that has such a tensor has the mapping.
"""

from __future__ import annotations

import mmap
from typing import Any

import torch
from torch import Tensor

from dpbench.parallel.shm.memory import as_bytes


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
