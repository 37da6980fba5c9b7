"""How the ranks of a group exchange shares: by messages, collectives, or reading memory."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.ddp.comm_hooks import Exchange
from dpbench.parallel.sharded.memory import Meetings, MemoryShares
from dpbench.parallel.sharded.shares import CollectiveShares, MessageShares, Shares
from dpbench.parallel.shm import arena_of


class ShareExchange:
    """Makes flat tensors that consist of one equal share per rank.

    Attributes:
        group: the ranks.
        rank, size: in the group.
    """

    def __init__(self, exchange: Exchange, device: torch.device) -> None:
        """
        Args:
            exchange: allocates the memory.
            device: of all tensors.
        """
        self.group = exchange.group
        self.rank, self.size = dist.get_rank(exchange.group), exchange.size
        self._exchange = exchange
        backends = dist.get_backend_config(exchange.group).split(",")
        self._has_messages = device.type == "cpu" and "cpu:gloo" in backends
        arena = arena_of(exchange.group) if device.type == "cpu" else None
        self._meetings: Meetings | None = None
        # The arena of a group on several hosts has the ranks of this one only.
        if arena is not None and arena.size == self.size > 1:
            self._meetings = Meetings(exchange.group, arena)

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> Shares:
        """A tensor of `count` zeros, a multiple of the number of ranks; a collective where memory
        is shared."""
        flat = self._exchange.zeros(count, dtype, device)
        if self._meetings is not None and count:
            return MemoryShares(flat, self.rank, self._meetings)
        return self.over(flat)

    def over(self, flat: Tensor) -> Shares:
        """The shares of any flat tensor whose size is a multiple of the number of ranks."""
        if self.size == 1 or not flat.numel():
            return Shares(flat, self.rank, self.size)
        return (MessageShares if self._has_messages else CollectiveShares)(flat, self.group)

    def settle(self) -> None:
        """Return when no other rank reads this rank's memory any more; all ranks call it."""
        if self._meetings is not None:
            self._meetings.settle()
