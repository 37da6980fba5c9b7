"""The thread that advances operations on which nobody waits.

A rank must not keep others waiting just because it computes after issuing an operation. While
operations are pending the thread polls them every few milliseconds, and finally blocks on what they
wait for. When nothing is pending it sleeps. It starts with the first such operation.
"""

from __future__ import annotations

import atexit
import os
import threading

from dpbench.parallel.shm.lane import Lane
from dpbench.parallel.shm.waiting import FIRST_LOOK, LAST_LOOK, block
from dpbench.parallel.shm.work import Work

# Seconds between polls; longer while nothing moves. A thread that
# computes may soon poll itself. A poll takes 20 µs, several times as long with cold caches.
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
