"""The collective that averages one flat tensor over the ranks, and the memory it likes best."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm import arena_of


class Exchange:
    """What a backend offers for gradients on one kind of device.

    Attributes:
        group: the ranks.
        size: how many they are.
        averages: whether the collective itself divides by the number of ranks; elsewhere whoever
            fills the tensor divides.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        self.size = dist.get_world_size(group)
        self._arena = arena_of(group) if device.type == "cpu" and self.size > 1 else None
        # Elsewhere the division costs nothing where gradients are copied anyway.
        self.averages = device.type == "cuda" and "cuda:nccl" in dist.get_backend_config(group)

        self._sum, self._mean = _options(dist.ReduceOp.SUM), _options(dist.ReduceOp.AVG)

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A flat tensor; a collective where memory is shared, so in one order on all ranks."""
        if self._arena is None or not count:
            return torch.zeros(count, dtype=dtype, device=device)
        return self._arena.allocate(count * dtype.itemsize).view(dtype)

    def start(self, flat: Tensor, *, average: bool) -> dist.Work | None:
        """Begin the sum of `flat` over the ranks, or its mean, in place; wait for the result.

        Returns:
            None where there is nothing to wait for.

        Raises:
            ValueError: for the mean where the backend only sums.
        """
        if average and not self.averages:
            raise ValueError(f"{dist.get_backend(self.group)} sums only")
        if self.size == 1 or not flat.numel():
            return None
        wire = torch.view_as_real(flat) if flat.is_complex() else flat
        # Not dist.all_reduce, whose checks and log of calls take longer than all else here.
        work: dist.Work = self.group.allreduce([wire], self._mean if average else self._sum)
        return work


def _options(operator: Any) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = operator
    options.asyncOp = True
    return options
