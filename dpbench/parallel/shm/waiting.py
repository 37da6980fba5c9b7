"""Waiting for other ranks: a thread first spins, then blocks, longer and longer."""

from __future__ import annotations

import os
import time

from dpbench.parallel.shm.member import AnyOf, Waiting
from dpbench.parallel.shm.semaphores import wait_for_token

# Tries before blocking: some tens of microseconds; every eighth yields the core.
SPINS = 160
YIELD_EVERY = 8
# While blocked, seconds until the other ranks and the clock are checked.
FIRST_LOOK, LAST_LOOK = 0.001, 0.05
# Seconds to wait for one of several flags.
_NAP = 100e-6


class Patience:
    """The waiting strategy of one thread for an operation that does not advance."""

    __slots__ = ("_longest", "_look", "_spins")

    def __init__(self, longest: float = LAST_LOOK) -> None:
        """
        Args:
            longest: most seconds to block at a time.
        """
        self._longest = longest
        self._look = FIRST_LOOK
        self._spins = 0

    def pause(self, waiting: Waiting) -> bool:
        """Wait a while; returns whether it is time to check the other ranks and the clock."""
        self._spins += 1
        if self._spins <= SPINS:
            if self._spins % YIELD_EVERY == 0:
                os.sched_yield()
            return False
        block(waiting, self._look)
        self._look = min(2 * self._look, self._longest)
        return True


def block(waiting: Waiting, seconds: float) -> None:
    """Return when what is awaited may be there, or after `seconds` at the latest."""
    if not isinstance(waiting, tuple):
        waiting.wait(seconds)
    elif len(waiting) == 1 or (waiting and not isinstance(waiting, AnyOf)):
        wait_for_token(waiting[0], seconds)
    else:
        time.sleep(_NAP)
