"""The collective that averages one flat tensor over the ranks, and the memory it is fastest in."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm import arena_of


class Exchange:
    """The operations of a backend on gradients of one kind of device.

    Attributes:
        group: the ranks.
        size: number of ranks.
        averages: whether the collective itself divides by the number of ranks; if not, the
            gradients are divided while the tensor is filled.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        self.size = dist.get_world_size(group)
        self._arena = arena_of(group) if device.type == "cpu" and self.size > 1 else None
        # For other backends the division is free, as part of copying the gradients.
        self.averages = device.type == "cuda" and "cuda:nccl" in dist.get_backend_config(group)

        self._sum, self._mean = _options(dist.ReduceOp.SUM), _options(dist.ReduceOp.AVG)

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A flat tensor of zeros; a collective where memory is shared, so call it in one order on
        all ranks."""
        if self._arena is None or not count:
            return torch.zeros(count, dtype=dtype, device=device)
        return self._arena.allocate(count * dtype.itemsize).view(dtype)

    def start(self, flat: Tensor, *, average: bool) -> dist.Work | None:
        """Begin the sum of `flat` over the ranks, or its mean, in place; wait for the result.

        Returns:
            None where there is nothing to wait for.

        Raises:
            ValueError: the mean is asked of a backend that only sums.
        """
        if average and not self.averages:
            raise ValueError(f"{dist.get_backend(self.group)} sums only")
        if self.size == 1 or not flat.numel():
            return None
        wire = torch.view_as_real(flat) if flat.is_complex() else flat
        # Not dist.all_reduce: its checks and call logging would take most of the time.
        work: dist.Work = self.group.allreduce([wire], self._mean if average else self._sum)
        return work


def _options(operator: Any) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = operator
    options.asyncOp = True
    return options
