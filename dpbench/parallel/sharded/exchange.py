"""The two halves of an all-reduce: sum a flat tensor into shares, and gather the shares again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.ddp.comm_hooks import Exchange

Wait = Callable[[], None]
"""Call it once, to wait for what was started (on CUDA only the current stream waits)."""
# Their names before torch 2.13 are deprecated.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_TAG, _GATHER_TAG = 7301, 7302
"""Tags of messages between two ranks, apart from those that a user may send in the same group."""


class ShareExchange:
    """The operations of a backend on flat tensors that consist of one equal share per rank.

    Ranks on gloo send each other their shares: its own reduce-scatter is an all-reduce, which moves
    twice as much, and its all-gather copies all shares once more.

    Attributes:
        rank, size: in the group.
        averages: whether the reduction can divide by the number of ranks.
    """

    def __init__(self, exchange: Exchange, device: torch.device) -> None:
        self._exchange = exchange
        self.group = exchange.group
        self.rank = dist.get_rank(exchange.group)
        self.size = exchange.size
        self.averages = exchange.averages
        backends = dist.get_backend_config(exchange.group).split(",")
        self._is_direct = device.type == "cpu" and "cpu:gloo" in backends

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """As Exchange.zeros: a collective where memory is shared."""
        return self._exchange.zeros(count, dtype, device)

    def own(self, flat: Tensor) -> Tensor:
        """This rank's share of a flat tensor."""
        return self._shares(flat)[self.rank]

    def scratch(self, flat: Tensor) -> Tensor | None:
        """Memory that `reduce` needs for tensors like this one; None where it needs none."""
        if not self._is_direct or self.size == 1:
            return None
        return torch.empty_like(self._shares(flat)[1:])

    def reduce(self, flat: Tensor, scratch: Tensor | None, *, average: bool) -> Wait:
        """Begin the sum over the ranks, or the mean, of this rank's share of `flat`, in place.

        What the other shares hold afterwards is undefined.
        """
        if self.size == 1 or not flat.numel():
            return _nothing
        wire = _real(flat)
        if scratch is None:
            operator = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
            work = _reduce_scatter(
                self.own(wire), wire, op=operator, group=self.group, async_op=True
            )
            return partial(_wait, [work])
        shares, received = self._shares(wire), _real(scratch).view(self.size - 1, -1)
        works: list[Any] = [
            dist.isend(shares[peer], self._of_world(peer), self.group, _REDUCE_TAG)
            for peer in self._others()
        ]
        works += [
            dist.irecv(row, self._of_world(peer), self.group, _REDUCE_TAG)
            for peer, row in zip(self._others(), received, strict=True)
        ]
        return partial(_add_up, works, self.own(flat), scratch)

    def gather(self, flat: Tensor) -> Wait:
        """Begin to replace the other shares of `flat` by those of the ranks that own them."""
        if self.size == 1 or not flat.numel():
            return _nothing
        wire = _real(flat)
        if not self._is_direct:
            work = _all_gather(wire, self.own(wire), group=self.group, async_op=True)
            return partial(_wait, [work])
        shares = self._shares(wire)
        works: list[Any] = []
        for peer in self._others():
            other = self._of_world(peer)
            works.append(dist.isend(shares[self.rank], other, self.group, _GATHER_TAG))
            works.append(dist.irecv(shares[peer], other, self.group, _GATHER_TAG))
        return partial(_wait, works)

    def _shares(self, flat: Tensor) -> Tensor:
        return flat.view(self.size, flat.numel() // self.size)

    def _others(self) -> list[int]:
        """The other ranks, the next one first, so that not all send to the same rank at once."""
        return [(self.rank + distance) % self.size for distance in range(1, self.size)]

    def _of_world(self, peer: int) -> int:
        return dist.get_global_rank(self.group, peer)


def _real(flat: Tensor) -> Tensor:
    """The same memory as real numbers, since not all backends know complex ones."""
    return torch.view_as_real(flat).flatten() if flat.is_complex() else flat


def _nothing() -> None:
    """There is nothing to wait for."""


def _wait(works: list[Any]) -> None:
    for work in works:
        work.wait()


def _add_up(works: list[Any], own: Tensor, received: Tensor) -> None:
    _wait(works)
    for other in received:
        own.add_(other)
