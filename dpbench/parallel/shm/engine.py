"""Gets operations on: whoever waits drives all pending ones; a thread looks after the rest.

A rank must not keep others waiting only because it has issued an operation and computes since.
So while operations are pending and nobody waits, a thread of the process looks at them every few
milliseconds, and in the end blocks on what they wait for. When nothing is pending it sleeps, and
before the first such operation there is none.
"""

from __future__ import annotations

import atexit
import os
import threading
import time

import torch
import torch.distributed as dist

from dpbench.parallel.shm.lane import Ended, Lane, block, break_group, is_local, require_hope
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.work import Work

# Tries of a flag before blocking: some tens of microseconds, the core offered at every eighth.
SPINS = 160
YIELD_EVERY = 8
# While blocked, a look at the other ranks and the clock after so many seconds.
FIRST_LOOK, LAST_LOOK = 0.001, 0.05
# With operations pending elsewhere in this process, at least as often as this.
BUSY_LOOK = 0.001
# The thread looks after so many seconds, and less often while nothing moves. A look takes 20 µs,
# several times as long with cold caches.
SHORTEST_REST, LONGEST_REST = 0.002, 0.016


class Engine:
    """All pending operations of this process."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, None] = {}
        self._guard = threading.Lock()
        self._waiters = 0
        # Threads that look after the rest: one looks, others are parked or within a callback.
        self._threads: list[threading.Thread] = []
        self._parked = 0
        self._baton = threading.Semaphore(0)
        self._pending = threading.Event()
        self._hurry = threading.Event()
        self._stopping = False
        self._pid = os.getpid()

    def submit(self, lane: Lane, work: Work) -> None:
        """Issue an operation and do what can be done at once."""
        lane.queue.append(work)
        self._lanes[lane] = None
        self.poll(lane)
        if not work.done:
            self._look_after()

    def poll(self, lane: Lane) -> None:
        """Get on with one lane without waiting."""
        ended: list[Ended] = []
        lane.step(ended)
        _finish(ended)

    def run(
        self, lane: Lane, member: Member, name: str, steps: Steps[None], timeout: float
    ) -> bool:
        """Run an operation from start to end, if it need not wait for its turn.

        Returns:
            Whether it did; if not, nothing has been done.
        """
        if not lane.claim():
            return False
        try:
            self._drive(member, name, steps, timeout)
        finally:
            lane.release()
        return True

    def wait(self, work: Work, lane: Lane, timeout: float | None) -> None:
        """Drive all pending operations until one is done.

        Raises:
            torch.distributed.DistBackendError: it is not, after the timeout.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        spins, look = 0, FIRST_LOOK
        self._count_waiter(1)
        try:
            while not work.done:
                if self.step(waiting=True):
                    spins, look = 0, FIRST_LOOK
                elif spins < SPINS:
                    spins += 1
                    if spins % YIELD_EVERY == 0:
                        os.sched_yield()
                else:
                    lane.block(look if len(self._lanes) == 1 else BUSY_LOOK)
                    look = min(2 * look, LAST_LOOK)
                    self.watch()
                    if limit is not None and time.monotonic() > limit and not work.done:
                        raise dist.DistBackendError(f"{work.name} took longer than {timeout:g} s")
        finally:
            self._count_waiter(-1)

    def step(self, *, waiting: bool = False) -> bool:
        """Get on with all pending operations without waiting.

        Args:
            waiting: whether the caller is counted among those who wait.

        Returns:
            Whether anything has moved.
        """
        ended: list[Ended] = []
        moved = self._advance(ended)
        # A callback may wait for another operation, which then is the thread's business.
        aside = waiting and any(work.has_future for work, _ in ended)
        if aside:
            self._count_waiter(-1)
        _finish(ended)
        if aside:
            self._count_waiter(1)
        return moved

    def watch(self) -> None:
        """Fail all that is pending and waits in vain."""
        ended: list[Ended] = []
        for lane in list(self._lanes):
            lane.watch(ended)
        _finish(ended)

    def hurry(self) -> None:
        """Somebody waits for a future: the thread is to block on flags rather than sleep."""
        self._hurry.set()

    def _drive(self, member: Member, name: str, steps: Steps[None], timeout: float) -> None:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # as in Lane
                return self._drive(member, name, steps, timeout)
        spins, look, taken, deadline = 0, FIRST_LOOK, member.taken, 0.0
        told_before = member.told
        try:
            for waiting in steps:
                if member.taken != taken:
                    spins, look, taken = 0, FIRST_LOOK, member.taken
                spins += 1
                if spins > SPINS:
                    # Counted from the first time that it blocks; most never do.
                    deadline = deadline or time.monotonic() + timeout
                    block(waiting, BUSY_LOOK if self._lanes else look)
                    look = min(2 * look, LAST_LOOK)
                    self._step_within()
                    require_hope(member, name, waiting, deadline, timeout)
                elif spins % YIELD_EVERY == 0:
                    os.sched_yield()
        except BaseException as error:
            if not is_local(member, error, told_before):
                break_group(member, name, error)
            raise

    def _step_within(self) -> None:
        """As `step`, for one who is within an operation: no callback may hold that up."""
        ended: list[Ended] = []
        self._advance(ended)
        if any(work.has_future for work, _ in ended):
            threading.Thread(target=_finish, args=(ended,), daemon=True).start()
        else:
            _finish(ended)

    def _advance(self, ended: list[Ended]) -> bool:
        moved = False
        for lane in list(self._lanes):
            moved |= lane.step(ended)
            if not lane.queue:
                self._lanes.pop(lane, None)
                # Another thread may have issued an operation in between.
                if lane.queue:
                    self._lanes[lane] = None
        return moved

    def _count_waiter(self, change: int) -> None:
        with self._guard:
            self._waiters += change

    def _look_after(self) -> None:
        if not self._threads:
            with self._guard:
                if not self._threads:
                    atexit.register(self._stop)
                    self._start_thread()
        self._pending.set()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._live, name="dpbench-shm", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _stop(self) -> None:
        """At exit: a thread must not be inside torch when the interpreter goes."""
        if os.getpid() != self._pid:
            return
        self._stopping = True
        self._pending.set()
        self._hurry.set()
        self._baton.release(len(self._threads))
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _live(self) -> None:
        seconds = SHORTEST_REST
        while not self._stopping:
            if not self._lanes:
                self._pending.clear()
                if not self._lanes:
                    self._pending.wait()
                    seconds = SHORTEST_REST
            elif not self._waiters and self._look():
                seconds = SHORTEST_REST
            else:
                self._rest(seconds)
                seconds = min(2 * seconds, LONGEST_REST)

    def _look(self) -> bool:
        """Get on with everything; whether anything has moved."""
        ended: list[Ended] = []
        moved = self._advance(ended)
        if any(work.has_future for work, _ in ended):
            # A callback may take its time, or wait for another operation.
            self._pass_the_baton()
            _finish(ended)
            self._park()
        else:
            _finish(ended)
        if not moved:
            self.watch()
        return moved

    def _pass_the_baton(self) -> None:
        with self._guard:
            if self._parked:
                self._parked -= 1
                self._baton.release()
            else:
                self._start_thread()

    def _park(self) -> None:
        with self._guard:
            self._parked += 1
        self._baton.acquire()

    def _rest(self, seconds: float) -> None:
        """Until the next look: first asleep, as the operations may be polled; later at a flag.

        At once at a flag, if somebody waits for a future, out of our sight.
        """
        self._hurry.clear()
        lanes = list(self._lanes)
        urgent = [lane for lane in lanes if any(work.urgent for work in list(lane.queue))]
        if urgent and not self._waiters:
            urgent[0].block(LAST_LOOK if len(lanes) == 1 else BUSY_LOOK)
        elif seconds == LONGEST_REST and len(lanes) == 1 and not self._waiters:
            lanes[0].block(LAST_LOOK)
        else:
            self._hurry.wait(seconds)


def _finish(ended: list[Ended]) -> None:
    for work, error in ended:
        work.finish(error)


_engine = Engine()


def engine() -> Engine:
    """That of this process."""
    return _engine


def _start_anew() -> None:
    """In a forked child, whose parent's threads and operations are none of its business."""
    global _engine
    _engine = Engine()


os.register_at_fork(after_in_child=_start_anew)
