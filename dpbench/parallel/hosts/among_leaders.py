"""The all-reduce of one chunk among the leaders of the hosts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

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
_PIECE_ELEMENTS = 64 * 1024
"""What is rounded at a time: two float32 operands fit the second-level cache."""


class AmongLeaders(ABC):
    """One chunk under way."""

    @abstractmethod
    def combine(self) -> Steps[None]:
        """Wait for the operands of the other leaders, if this leader reduces some of them."""

    @abstractmethod
    def arrival(self) -> Steps[None]:
        """Wait for the result."""


def among_leaders(
    leaders: Carrier,
    hosts: Hosts,
    tensor: Tensor,
    operator: Operator,
    feedback: Tensor | None = None,
) -> AmongLeaders:
    """Begin to send a chunk.

    Args:
        leaders: reaches them.
        hosts: of the group.
        tensor: what this host's ranks have together, without an average; gets the result.
        operator: the reduction.
        feedback: None to send the elements as they are. Otherwise float32 like `tensor`, whose sum
            then travels in bfloat16: what earlier roundings have taken, which is added; afterwards
            what these have taken.
    """
    if feedback is not None:
        return _Rounded(leaders, hosts, tensor, operator, feedback)
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


class _Rounded(AmongLeaders):
    """As `_Direct`, a sum of float32, with bfloat16 on the network.

    A leader rounds what it sends, its operands and then the results of its share, and takes its own
    operand as it is. All leaders, the sender too, get the rounded results, so all have the same
    bits.
    """

    def __init__(
        self,
        leaders: Carrier,
        hosts: Hosts,
        tensor: Tensor,
        operator: Operator,
        feedback: Tensor,
    ) -> None:
        self._leaders = leaders
        self._hosts = hosts
        self._tensor, self._average = tensor, operator.average
        parts = len(hosts.ranks)
        self._share = tensor.tensor_split(parts)[hosts.host]
        self._feedback = feedback.tensor_split(parts)[hosts.host]
        self._counts = [part.numel() for part in tensor.tensor_split(parts)]
        self._own = [self._share.numel()] * parts
        self._wire = _rounded_sum(tensor, [feedback], feedback)
        self._operands = torch.empty(sum(self._own), dtype=torch.bfloat16, device="cpu")
        self._crossing = leaders.exchange(self._wire, self._counts, self._operands, self._own)

    def combine(self) -> Steps[None]:
        yield from self._leaders.arrival(self._crossing)
        operands = list(self._operands.tensor_split(len(self._own)))
        del operands[self._hosts.host]
        results = _rounded_sum(self._share, operands, self._feedback).repeat(len(self._own))
        self._crossing = self._leaders.exchange(results, self._own, self._wire, self._counts)

    def arrival(self) -> Steps[None]:
        yield from self._leaders.arrival(self._crossing)
        self._tensor.copy_(self._wire)
        if self._average:
            self._tensor.mul_(1 / self._hosts.size)


def _rounded_sum(total: Tensor, operands: Sequence[Tensor], lost: Tensor) -> Tensor:
    """Add operands to a float32 tensor; returns the sum in bfloat16.

    Args:
        total: becomes the sum, which is not rounded.
        operands: added in order.
        lost: gets what rounding takes from the sum; it may be the last operand. It is 0 where that
            is not finite: an overflow would otherwise come back in every step.
    """
    rounded = torch.empty(total.shape, dtype=torch.bfloat16, device="cpu")
    tensors = (total, lost, rounded, *operands)
    pieces = zip(*(torch.split(tensor, _PIECE_ELEMENTS) for tensor in tensors), strict=True)
    for exact, rest, short, *others in pieces:
        for other in others:
            exact.add_(other)
        short.copy_(exact)
        rest.copy_(short)
        torch.sub(exact, rest, out=rest).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return rounded
