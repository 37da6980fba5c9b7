"""The all-reduce of one chunk among the leaders of the hosts."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dpbench.parallel.hosts.carrier import Carrier
from dpbench.parallel.hosts.membership import Hosts
from dpbench.parallel.shm.member import Steps
from dpbench.parallel.shm.operators import Operator

# What gloo reduces itself, round a ring, as torch would. For the rest it only carries bytes.
_GLOO_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int32, torch.int64),
)
_SUMS = ("SUM", "AVG")


class AmongLeaders(ABC):
    """One chunk under way."""

    @abstractmethod
    def combine(self) -> Steps[None]:
        """Wait for the operands of the other leaders, if this leader reduces some of them."""

    @abstractmethod
    def arrival(self) -> Steps[None]:
        """Wait for the result."""


def among_leaders(
    leaders: Carrier, hosts: Hosts, tensor: Tensor, operator: Operator
) -> AmongLeaders:
    """Begin to send a chunk.

    Args:
        leaders: reaches them.
        hosts: of the group.
        tensor: what this host's ranks have together, without an average; gets the result.
        operator: the reduction.
    """
    if tensor.dtype in _GLOO_DTYPES and operator.name in _SUMS:
        return _Ring(leaders, hosts, tensor, operator)
    return _Direct(leaders, hosts, tensor, operator)


class _Ring(AmongLeaders):
    """gloo's own sum, which keeps the network busiest."""

    def __init__(self, leaders: Carrier, hosts: Hosts, tensor: Tensor, operator: Operator) -> None:
        self._leaders = leaders
        self._ranks, self._tensor, self._average = hosts.size, tensor, operator.average
        self._crossing = leaders.begin(leaders.gloo.allreduce([tensor]))

    def combine(self) -> Steps[None]:
        yield from ()

    def arrival(self) -> Steps[None]:
        yield from self._leaders.arrival(self._crossing)
        if self._average:
            self._tensor.mul_(1 / self._ranks)


class _Direct(AmongLeaders):
    """Each leader gets a share of all operands, reduces it, and sends the result to all."""

    def __init__(self, leaders: Carrier, hosts: Hosts, tensor: Tensor, operator: Operator) -> None:
        self._leaders = leaders
        self._ranks, self._tensor, self._operator = hosts.size, tensor, operator
        self._counts = [part.numel() for part in tensor.tensor_split(len(hosts.ranks))]
        self._own = [self._counts[hosts.host]] * len(hosts.ranks)
        self._operands = torch.empty(sum(self._own), dtype=tensor.dtype, device="cpu")
        self._crossing = leaders.exchange(tensor, self._counts, self._operands, self._own)

    def combine(self) -> Steps[None]:
        yield from self.arrival()
        operands = self._operands.tensor_split(len(self._own))
        result = torch.empty_like(operands[0])
        self._operator.reduce(operands, out=result, ranks=self._ranks)
        results = result.repeat(len(self._own))
        self._crossing = self._leaders.exchange(results, self._own, self._tensor, self._counts)

    def arrival(self) -> Steps[None]:
        yield from self._leaders.arrival(self._crossing)
