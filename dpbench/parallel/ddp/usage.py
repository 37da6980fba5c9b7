"""Which gradients a backward gives: a class for each promise of the user.

                gradients of a backward           known before its end   in the first one's order
GradientUsage   one of each parameter             always                 yes
FindUnused      of any of the parameters          never                  no
StaticGraph     as in the first backward, where   from the second        yes
                parameters may be unused, or      backward on
                used several times
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist


class GradientUsage:
    """One gradient of each parameter in every backward (the default).

    Attributes:
        needs_gradient: whether a hook that fires without a gradient has not fired.
        waits_for_end: whether only the end of the next backward tells which gradients it gives.
        keeps_order: whether later backwards give them in the order of the first.
    """

    needs_gradient = False
    waits_for_end = False
    keeps_order = True

    def __init__(
        self, parameter_count: int, group: dist.ProcessGroup, device: torch.device
    ) -> None:
        """`device` is one whose tensors the group takes."""
        self._count, self._group, self._device = parameter_count, group, device

    def expected_fires(self) -> list[int]:
        """How often the hook of each parameter fires in the next backward."""
        return [1] * self._count

    def observe(self, fired: Sequence[int]) -> None:
        """Learn from the indices of the hooks that have fired, at the end of a backward."""

    def used_anywhere(self, used_here: Collection[int]) -> Collection[int]:
        """The parameters that some rank has used since the last reduction.

        A collective, unless the answer is known. `used_here` are those that this rank has used.
        """
        return range(self._count)


class FindUnused(GradientUsage):
    """Finds out at the end of each backward which parameters no rank has used."""

    waits_for_end = True
    keeps_order = False

    def used_anywhere(self, used_here: Collection[int]) -> Collection[int]:
        every_index = range(self._count)
        flags = torch.ones(self._count, dtype=torch.int32, device=self._device)
        if unused := sorted(set(every_index).difference(used_here)):
            flags[unused] = 0
        dist.all_reduce(flags, group=self._group)
        # The host waits for a GPU when it reads the flags, so only where they tell something.
        return set(flags.nonzero().flatten().tolist()) if unused else every_index


class StaticGraph(FindUnused):
    """Counts in the first backward how often each hook fires, and expects the same of all others.

    Later ones have no node at their start, behind which hooks also fire for outputs that the loss
    does not use; so hooks without a gradient never count.
    """

    needs_gradient = True
    keeps_order = True
    _first_fires: Sequence[int] = ()  # how often each hook fired in it; empty before its end
    _first_used: Collection[int] | None = None  # the parameters that some rank used in it

    def expected_fires(self) -> list[int]:
        # In the first backward more than any hook fires: no bucket is ready before its end.
        return [*self._first_fires] or [sys.maxsize] * self._count

    def observe(self, fired: Sequence[int]) -> None:
        if self.waits_for_end:
            self.waits_for_end = False
            times = Counter(fired)
            self._first_fires = [times[index] for index in range(self._count)]

    def used_anywhere(self, used_here: Collection[int]) -> Collection[int]:
        if self._first_used is None:
            self._first_used = super().used_anywhere(used_here)
        return self._first_used
