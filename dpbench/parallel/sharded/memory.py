"""Shares in memory that all ranks of the group see: nothing is sent, ranks only wait.

A rank reduces its share from where the others have their gradients, and copies the parameters of
the others from where they have stepped them. It writes to its own memory only:

    backward   writes the gradients of all shares
    meeting    … all ranks have written theirs
               sums its share over the ranks, and steps its share of the parameters
    meeting    … all ranks have stepped, and no rank reads gradients any more
               copies the shares of the others
    meeting    … no rank reads parameters any more; the user may change them

Without a step, the last meeting is at the next forward, before its backward writes again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.sharded.shares import Shares, Summands, Wait
from dpbench.parallel.shm.arena import Arena


class Meetings:
    """Barriers of a group whose ranks read each other's memory; one is for all tensors at once.

    All ranks begin the same operations in the same order, and end them in the same order.
    """

    def __init__(self, group: dist.ProcessGroup, arena: Arena) -> None:
        """
        Args:
            group: the ranks.
            arena: their memory.
        """
        self.arena = arena
        self._group = group
        self._options: Any = dist.BarrierOptions()
        self._options.asyncOp = False
        self._begun = self._met = 0
        self._is_read = False

    def begin(self) -> int:
        """Note that this rank has written what others are to read; returns a number for it."""
        self._begun += 1
        return self._begun

    def attend(self, number: int) -> None:
        """Return when all ranks have begun the operation of this number; a collective unless a
        meeting since then has shown it."""
        if number > self._met:
            self._meet()
            self._met, self._is_read = self._begun, True

    def settle(self) -> None:
        """Return when no other rank reads this rank's memory any more; a collective unless that is
        known."""
        if self._is_read:
            self._meet()
            self._is_read = False

    def _meet(self) -> None:
        # Not dist.barrier, whose checks take as long as the meeting.
        self._group.barrier(self._options).wait()


class MemoryShares(Shares):
    """Shares of a tensor that lies in the arena, at one place on all ranks."""

    def __init__(self, flat: Tensor, rank: int, meetings: Meetings) -> None:
        """
        Args:
            flat: from the arena.
            rank: in the group.
            meetings: of the group.
        """
        super().__init__(flat, rank, meetings.arena.size)
        self._meetings = meetings
        mine = self.of_ranks(flat)
        everywhere = [self.of_ranks(theirs) for theirs in meetings.arena.everywhere(flat)]
        self._summands = Summands(self.own, [everywhere[peer][rank] for peer in self.others])
        self._copies = [(mine[peer], everywhere[peer][peer]) for peer in self.others]

    def reduce(self, scale: float, *, average: bool) -> Wait:
        return partial(self._add_up, self._meetings.begin(), scale)

    def gather(self) -> Wait:
        return partial(self._copy, self._meetings.begin())

    def _add_up(self, number: int, scale: float) -> None:
        self._meetings.attend(number)
        self._summands.add_up(scale)

    def _copy(self, number: int) -> None:
        self._meetings.attend(number)
        for place, source in self._copies:
            place.copy_(source)
