"""A queue of operations that run one after the other, and how a thread waits for other ranks.

A thread that waits first spins, then blocks, longer and longer.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque

import torch
import torch.distributed as dist

from dpbench.parallel.shm.failures import HARMLESS, break_group, broken_error, require_hope
from dpbench.parallel.shm.member import Member, Waiting
from dpbench.parallel.shm.semaphores import wait_for_token
from dpbench.parallel.shm.work import Work

# Tries before blocking: some tens of microseconds; every eighth yields the core.
SPINS = 160
YIELD_EVERY = 8
# While blocked, seconds until the other ranks and the clock are checked.
FIRST_LOOK, LAST_LOOK = 0.001, 0.05
# Seconds to wait for an operation that has not begun.
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
    elif waiting:
        wait_for_token(waiting[0], seconds)
    else:
        time.sleep(_NAP)


class Lane:
    """Runs operations in the order in which they were issued.

    Attributes:
        queue: operations that were issued and have not ended; the first may have begun.
        driver: lock held by the one thread that advances the operations, also while it waits for
            other ranks, but not while callbacks run.
        waiting: the flags or copy that the first operation waits for.
        is_urgent_always: whether somebody may wait for any of its operations without driving it.
    """

    def __init__(self, member: Member) -> None:
        self.queue: deque[Work] = deque()
        self.driver = threading.Lock()
        self.waiting: Waiting = ()
        self.is_urgent_always = False
        self._member = member

    def claim(self) -> bool:
        """Try to become the lane's driver, to run an operation directly; if True, the caller must
        release `driver`."""
        return not self.queue and self.driver.acquire(blocking=False)

    @property
    def is_urgent(self) -> bool:
        """Whether somebody may wait for its operations without driving them."""
        return self.is_urgent_always or any(work.urgent for work in list(self.queue))

    def advance(self, callbacks: list[Work]) -> bool:
        """Advance the first operations as far as possible without waiting; call it as the driver.

        Args:
            callbacks: gets the ended operations whose callbacks are due; the caller has to run them
                once it is no longer the driver.

        Returns:
            Whether anything has moved.
        """
        if torch.is_inference_mode_enabled():
            # Views made here may outlive the mode, and another thread may continue outside it.
            with torch.inference_mode(False):
                return self.advance(callbacks)
        return self._advance(callbacks)

    def watch(self, callbacks: list[Work]) -> None:
        """Fail operations that wait in vain: for a rank that is gone, or beyond their deadline."""
        if self.queue:
            work = self.queue[0]
            try:
                require_hope(self._member, work.name, self.waiting, work.deadline, work.timeout)
            except dist.DistBackendError as error:
                break_group(self._member, work.name, error)
                self._fail_all(callbacks, error)

    def _advance(self, callbacks: list[Work]) -> bool:
        moved = False
        while self.queue:
            if self._member.broken:
                self._fail_all(callbacks, broken_error(self._member))
                return True
            work = self.queue[0]
            taken = self._member.taken
            try:
                self.waiting = next(work.steps)
            except StopIteration as stop:
                work.value = stop.value
                self._end_first(callbacks, None)
            except HARMLESS as error:
                self._end_first(callbacks, error)
            except BaseException as error:
                # After any such error, the operations behind this one would meet operations of the
                # other ranks that do not match.
                break_group(self._member, work.name, error)
                self._fail_all(callbacks, error)
                return True
            else:
                if self._member.taken == taken:
                    return moved
            moved = True
        return moved

    def _end_first(self, callbacks: list[Work], error: BaseException | None) -> None:
        self.waiting = ()
        work = self.queue.popleft()
        if work.end(error):
            callbacks.append(work)

    def _fail_all(self, callbacks: list[Work], error: BaseException) -> None:
        while self.queue:
            self._end_first(callbacks, error)
