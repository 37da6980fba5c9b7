"""Which gradients a backward gives: a class for each promise that the user makes about it.

AllUsed      every backward gives each parameter one gradient; anything else is an error
FindUnused   any backward may leave out any parameter
StaticGraph  all backwards are like the first, in which parameters may be unused, or used often
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist


@dataclass
class AllUsed:
    """Expects one gradient of each parameter in every backward (the default)."""

    parameters: int
    """Their number."""
    group: dist.ProcessGroup
    device: torch.device
    """A device whose tensors the group takes."""
    waits_for_end = False
    """Whether only the end of the next backward tells which gradients it gives."""
    needs_gradient = False
    """Whether a hook that fires without a gradient has not fired."""
    has_order = True
    """Whether gradients become ready in the order of the first backward."""

    def expected(self) -> list[int]:
        """How often the hook of each parameter fires in the next backward."""
        return [1] * self.parameters

    def observe(self, fired: Sequence[int]) -> None:
        """Learn from the indices of the hooks that have fired, at the end of a backward."""

    def used(self, here: Collection[int]) -> Collection[int] | None:
        """The parameters that some rank has used since the last reduction; None means all.

        A collective, unless the answer is known. `here` are those that this rank has used.
        """
        return None


class FindUnused(AllUsed):
    """Finds out at the end of each backward which parameters no rank has used."""

    waits_for_end = True
    has_order = False

    def used(self, here: Collection[int]) -> Collection[int] | None:
        flags = torch.ones(self.parameters, dtype=torch.int32, device=self.device)
        if unused := sorted(set(range(self.parameters)).difference(here)):
            flags[unused] = 0
        dist.all_reduce(flags, group=self.group)
        # The host waits for a GPU when it reads the flags, so only where they tell something.
        return set(flags.nonzero().flatten().tolist()) if unused else None


@dataclass
class StaticGraph(FindUnused):
    """Counts in the first backward how often each hook fires, and expects the same of all others.

    Later ones have no node at their start, behind which hooks also fire for outputs that the loss
    does not use; so hooks without a gradient never count.
    """

    needs_gradient = True
    has_order = True
    _fires: list[int] = field(default_factory=list)
    _used: list[Collection[int] | None] = field(default_factory=list)
    """The answer of the first backward."""

    def expected(self) -> list[int]:
        # In the first backward more than any hook fires: no bucket is ready before its end.
        return self._fires.copy() or [sys.maxsize] * self.parameters

    def observe(self, fired: Sequence[int]) -> None:
        if self.waits_for_end:
            times = Counter(fired)
            self._fires = [times[index] for index in range(self.parameters)]
            self.waits_for_end = False

    def used(self, here: Collection[int]) -> Collection[int] | None:
        if not self._used:
            self._used.append(super().used(here))
        return self._used[0]
