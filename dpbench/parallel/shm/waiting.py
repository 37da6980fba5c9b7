"""How a thread waits for other ranks: first it spins, then it blocks, longer and longer."""

from __future__ import annotations

import os
import time

from dpbench.parallel.shm.cuda_copies import HostCopy
from dpbench.parallel.shm.member import AnyOf, Waiting
from dpbench.parallel.shm.semaphores import wait_for_token

# Tries of a flag before blocking: some tens of microseconds, the core offered at every eighth.
SPINS = 160
YIELD_EVERY = 8
# While blocked, a look at the other ranks and the clock after so many seconds.
FIRST_LOOK, LAST_LOOK = 0.001, 0.05
# A wait for one of several flags, or for a copy while there is more to look after.
_NAP = 100e-6


class Patience:
    """That of one thread with an operation that does not get ahead."""

    __slots__ = ("_longest", "_look", "_spins")

    def __init__(self, longest: float = LAST_LOOK) -> None:
        """
        Args:
            longest: seconds to block at a time.
        """
        self._longest = longest
        self._look = FIRST_LOOK
        self._spins = 0

    def pause(self, waiting: Waiting) -> bool:
        """Wait a while; whether it was long enough to see after the other ranks and the clock."""
        self._spins += 1
        if self._spins <= SPINS:
            if self._spins % YIELD_EVERY == 0:
                os.sched_yield()
            return False
        block(waiting, self._look)
        self._look = min(2 * self._look, self._longest)
        return True


def block(waiting: Waiting, seconds: float) -> None:
    """Return when what is awaited may be there, at the latest after a time."""
    if isinstance(waiting, HostCopy):
        if seconds > FIRST_LOOK:
            waiting.wait()
        else:
            time.sleep(_NAP)
    elif len(waiting) == 1 or (waiting and not isinstance(waiting, AnyOf)):
        wait_for_token(waiting[0], seconds)
    else:
        time.sleep(_NAP)
