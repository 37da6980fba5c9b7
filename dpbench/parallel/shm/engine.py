"""Advances operations: a thread that waits for one drives it; a background thread does the rest.

A rank must not keep others waiting just because it computes after issuing an operation. While
operations are pending the background thread polls them every few milliseconds, and finally blocks
on what they wait for. When nothing is pending it sleeps. It starts with the first such operation.
"""

from __future__ import annotations

import atexit
import os
import threading
import time

import torch
import torch.distributed as dist

from dpbench.parallel.shm.failures import break_group, is_local, require_hope
from dpbench.parallel.shm.lane import FIRST_LOOK, LAST_LOOK, Lane, Patience, block
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.work import Work

# Seconds between polls; longer while nothing moves. A thread that computes may soon poll itself. A
# poll takes 20 µs, several times as long with cold caches.
SHORTEST_REST, LONGEST_REST = 0.002, 0.016


class Background:
    """One thread advances all lanes that no other thread drives.

    It hands this task to another thread before it runs an operation's callbacks, which may take
    long or wait for other operations; so there is one thread more than there are callbacks running
    at once.
    """

    def __init__(self, lanes: dict[Lane, None]) -> None:
        """
        Args:
            lanes: the lanes with operations; other threads add to them.
        """
        self._lanes = lanes
        self._threads: list[threading.Thread] = []
        self._calling_back = 0
        self._turn = threading.Lock()
        self._guard = threading.Lock()
        self._pending = threading.Event()
        self._hurry = threading.Event()
        self._stopping = False
        self._pid = os.getpid()

    def wake(self) -> None:
        """Wake the thread, as there is an operation to advance."""
        if not self._threads:
            with self._guard:
                if not self._threads:
                    atexit.register(self._stop)
                    self._start()
        self._pending.set()

    def hurry(self) -> None:
        """Poll sooner, as somebody waits for a pending operation without driving it."""
        self._hurry.set()

    def _start(self) -> None:
        thread = threading.Thread(target=self._live, name="dpbench-shm", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _stop(self) -> None:
        """Stop at exit: a thread must not be inside torch when the interpreter shuts down."""
        if os.getpid() != self._pid:
            return
        self._stopping = True
        self._pending.set()
        self._hurry.set()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _live(self) -> None:
        while not self._stopping:
            with self._turn:
                works = self._look_after()
                with self._guard:
                    self._calling_back += 1
                    if self._calling_back == len(self._threads) and not self._stopping:
                        self._start()
            call_back(works)
            works.clear()  # or this thread would keep them while it waits for its turn
            with self._guard:
                self._calling_back -= 1

    def _look_after(self) -> list[Work]:
        """Advance operations until some have ended whose callbacks are due; returns these."""
        works: list[Work] = []
        rest = SHORTEST_REST
        while not self._stopping and not works:
            if not self._lanes:
                self._pending.clear()
                if not self._lanes:
                    self._pending.wait()
                    rest = SHORTEST_REST
            elif self._look(works):
                rest = SHORTEST_REST
            else:
                self._rest(rest)
                rest = min(2 * rest, LONGEST_REST)
        return works

    def _look(self, works: list[Work]) -> bool:
        """Advance everything; returns whether anything has moved."""
        moved = False
        for lane in list(self._lanes):
            if lane.driver.acquire(blocking=False):
                try:
                    if lane.advance(works):
                        moved = True
                    else:
                        lane.watch(works)
                finally:
                    lane.driver.release()
                forget_if_idle(self._lanes, lane)
        return moved

    def _rest(self, seconds: float) -> None:
        """Wait until the next poll: first asleep, as the operations may be driven; later at a flag.

        It waits at a flag at once if somebody waits for a future, since that wait drives nothing.
        """
        self._hurry.clear()
        lanes = list(self._lanes)
        # Leave out lanes with a driver: their flags may have tokens already, on which this
        # thread would spin and keep the interpreter lock from the driver.
        free = [lane for lane in lanes if not lane.driver.locked()]
        urgent = [lane for lane in free if lane.is_urgent or not isinstance(lane.waiting, tuple)]
        if urgent:
            block(urgent[0].waiting, LAST_LOOK if len(free) == 1 else FIRST_LOOK)
        elif seconds == LONGEST_REST and len(free) == 1:
            block(free[0].waiting, LAST_LOOK)
        else:
            self._hurry.wait(seconds)


def forget_if_idle(lanes: dict[Lane, None], lane: Lane) -> None:
    """Remove a lane without operations."""
    if not lane.queue:
        lanes.pop(lane, None)
        # Another thread may have issued an operation in between.
        if lane.queue:
            lanes[lane] = None


def call_back(works: list[Work]) -> None:
    """Run the callbacks of operations that have ended."""
    for work in works:
        work.call_back()


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
            patience = patience or Patience()
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
