"""Advances operations: a thread that waits for one drives it; a background thread does the rest."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

from dpbench.parallel.shm.background import Background, call_back, forget_if_idle
from dpbench.parallel.shm.failures import break_group, is_local, require_hope
from dpbench.parallel.shm.lane import Lane
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.waiting import FIRST_LOOK, LAST_LOOK, Patience
from dpbench.parallel.shm.work import Work


class Engine:
    """All pending operations of this process."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, None] = {}
        self._background = Background(self._lanes)

    def submit(self, lane: Lane, work: Work) -> None:
        """Issue an operation and advance it as far as possible at once."""
        lane.queue.append(work)
        self._lanes[lane] = None
        self.poll(lane)
        if not work.done:
            self._background.wake()

    def poll(self, lane: Lane, patience: float = 0.0) -> None:
        """Advance one lane without waiting for other ranks.

        Args:
            lane: may have operations.
            patience: seconds to wait for a thread that drives the lane.
        """
        if lane.queue and lane.driver.acquire(timeout=patience):
            works: list[Work] = []
            try:
                lane.advance(works)
            finally:
                lane.driver.release()
                forget_if_idle(self._lanes, lane)
                call_back(works)

    def run(
        self, lane: Lane, member: Member, name: str, steps: Steps[None], timeout: float
    ) -> bool:
        """Run an operation from start to end, unless it has to wait for its turn.

        Returns:
            Whether it was run; if not, nothing has been done.
        """
        if not lane.claim():
            return False
        told_before = member.told
        try:
            if torch.is_inference_mode_enabled():
                with torch.inference_mode(False):  # as in Lane
                    self._run(member, name, steps, timeout)
            else:
                self._run(member, name, steps, timeout)
        except BaseException as error:
            if not is_local(member, error, told_before):
                break_group(member, name, error)
            raise
        finally:
            lane.driver.release()
        return True

    def wait(self, work: Work, lane: Lane, timeout: float | None) -> None:
        """Drive an operation, and those before it, until it is done.

        Raises:
            torch.distributed.DistBackendError: it is not done after the timeout.
        """
        if self is not _engine:
            raise RuntimeError(
                f"{work.name} was issued by the process that forked process {os.getpid()}, and "
                "only that one can wait for it"
            )
        limit = None if timeout is None else time.monotonic() + timeout
        look = FIRST_LOOK
        while not work.done:
            # A thread that drives already either ends this operation too or releases the lane.
            if not lane.driver.acquire(timeout=look):
                look = min(2 * look, LAST_LOOK)
            else:
                works: list[Work] = []
                try:
                    self._drive(lane, work, works, limit)
                finally:
                    lane.driver.release()
                    forget_if_idle(self._lanes, lane)
                    call_back(works)
            if limit is not None and time.monotonic() > limit and not work.done:
                raise dist.DistBackendError(f"{work.name} took longer than {timeout:g} s")
        if lane.queue and lane.is_urgent:
            self.hurry()

    def abandon(self) -> None:
        """Forget all operations without ending them."""
        for lane in list(self._lanes):
            lane.queue.clear()

    def hurry(self) -> None:
        """Poll sooner, as somebody waits for a future without driving it."""
        self._background.hurry()

    def _run(self, member: Member, name: str, steps: Steps[None], timeout: float) -> None:
        patience: Patience | None = None
        taken, deadline = 0, 0.0
        for waiting in steps:
            if patience is None or member.taken != taken:
                patience, taken = Patience(), member.taken
            if patience.pause(waiting):
                # The time starts when the wait first blocks; most never do.
                deadline = deadline or time.monotonic() + timeout
                require_hope(member, name, waiting, deadline, timeout)

    def _drive(self, lane: Lane, work: Work, works: list[Work], limit: float | None) -> None:
        """Drive until the work is done, another operation's callbacks are due, or the limit has
        passed."""
        patience: Patience | None = None
        while not work.done and not works:
            if lane.advance(works):
                patience = None
                continue
            patience = patience or Patience(lane.longest_look)
            if patience.pause(lane.waiting):
                lane.watch(works)
                if limit is not None and time.monotonic() > limit:
                    return


_engine = Engine()


def engine() -> Engine:
    """The engine of this process."""
    return _engine


def _start_anew() -> None:
    """Make a new engine in a forked child, which must not touch its parent's threads and
    operations."""
    global _engine
    _engine.abandon()
    _engine = Engine()


os.register_at_fork(after_in_child=_start_anew)
