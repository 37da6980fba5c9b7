"""The thread that gets operations on which nobody waits for.

A rank must not keep others waiting only because it has issued an operation and computes since.
While operations are pending the thread looks at them every few milliseconds, and in the end blocks
on what they wait for. When nothing is pending it sleeps, and before the first such operation there
is none.
"""

from __future__ import annotations

import atexit
import os
import threading

from dpbench.parallel.shm.cuda_copies import HostCopy
from dpbench.parallel.shm.lane import Lane
from dpbench.parallel.shm.waiting import FIRST_LOOK, LAST_LOOK, block
from dpbench.parallel.shm.work import Work

# The thread looks after so many seconds, and less often while nothing moves: a thread that
# computes may do it itself soon. A look takes 20 µs, several times as long with cold caches.
SHORTEST_REST, LONGEST_REST = 0.002, 0.016


class Background:
    """One thread looks after all lanes that nobody drives.

    It leaves that to another one before it lets an operation call back, as a callback may take
    its time, or wait for other operations; so there are as many threads as callbacks at once, and
    one more.
    """

    def __init__(self, lanes: dict[Lane, None]) -> None:
        """
        Args:
            lanes: those with operations; others add to them.
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
        """There is something to look after."""
        if not self._threads:
            with self._guard:
                if not self._threads:
                    atexit.register(self._stop)
                    self._start()
        self._pending.set()

    def hurry(self) -> None:
        """Somebody waits, without driving, for something that is pending."""
        self._hurry.set()

    def _start(self) -> None:
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
            works.clear()  # which this thread would keep while it waits for its turn
            with self._guard:
                self._calling_back -= 1

    def _look_after(self) -> list[Work]:
        """Until some operations have ended that want to call back; these."""
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
        """Get on with everything; whether anything has moved."""
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
        """Until the next look: first asleep, as the operations may be driven; later at a flag.

        At once at a flag, if somebody waits for a future, out of our sight.
        """
        self._hurry.clear()
        lanes = list(self._lanes)
        # A driver sees for itself. Its flags may have tokens, and who looks at them without end
        # keeps the interpreter from it.
        free = [lane for lane in lanes if not lane.driver.locked()]
        urgent = [lane for lane in free if lane.is_urgent or isinstance(lane.waiting, HostCopy)]
        if urgent:
            block(urgent[0].waiting, LAST_LOOK if len(free) == 1 else FIRST_LOOK)
        elif seconds == LONGEST_REST and len(free) == 1:
            block(free[0].waiting, LAST_LOOK)
        else:
            self._hurry.wait(seconds)


def forget_if_idle(lanes: dict[Lane, None], lane: Lane) -> None:
    """Take out a lane without operations."""
    if not lane.queue:
        lanes.pop(lane, None)
        # Another thread may have issued an operation in between.
        if lane.queue:
            lanes[lane] = None


def call_back(works: list[Work]) -> None:
    """Let operations that have ended call back."""
    for work in works:
        work.call_back()
