"""The thread that kills ranks when their time is over or a trial is stopped."""

from __future__ import annotations

import ctypes
import math
import signal
import threading
from pathlib import Path
from time import monotonic, sleep
from typing import Self

from torch.distributed.elastic.multiprocessing import SignalException

from dpbench.launch.rank import Part, pid_path
from dpbench.store.process_identity import ProcessIdentity

KILL_AGAIN_SECONDS = 0.1
"""Seconds between two attempts: a rank that is still being started has no pid yet."""
STARTING_SECONDS = 2.0
"""Seconds that a forked rank may take to write its pid."""
AGENT_SECONDS = 1.0
"""Seconds that torch's agent may take to see that all ranks have ended."""


class AgentWoken(SignalException):
    """Raised in a thread that runs torch's agent, which waits for results of ranks that are gone.

    The agent ends on it as it does on a signal.
    """

    def __init__(self) -> None:
        super().__init__("the ranks are gone", signal.SIGTERM)


class RankKiller:
    """Inside the context, ranks are killed after `seconds`, or as soon as `stop` is set.

    At the end it sets `stop` itself, so each run needs one of its own.
    """

    def __init__(self, scratch: Path, part: Part, seconds: float, stop: threading.Event) -> None:
        self.aborted: set[int] = set()
        """Ranks that were running when they were stopped: how they ended means nothing."""
        self.overdue: set[int] = set()
        """Ranks that were running when their time was over."""
        self._scratch = scratch
        self._ranks = part.ranks
        self._seconds = seconds
        self._stop = stop
        self._woke_agent = False
        self._caller = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rank-killer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._stop.set()
        self._thread.join()

    def kill_ranks(self) -> None:
        """Kill the remaining ranks when the agent no longer knows of them.

        A rank that was forked a moment ago has written no pid yet.
        """
        until = monotonic() + STARTING_SECONDS
        for number in self._ranks:
            while self._kill(number) and not pid_path(self._scratch, number).exists():
                if monotonic() > until:
                    break
                sleep(KILL_AGAIN_SECONDS)

    def _watch(self) -> None:
        stopped = self._stop.wait(self._seconds)
        gone_since = math.inf
        while not self._over.is_set():
            running = {number for number in self._ranks if self._kill(number)}
            if stopped:
                self.aborted |= running
            else:
                self.overdue |= running
            gone_since = math.inf if running else min(gone_since, monotonic())
            if monotonic() > gone_since + AGENT_SECONDS:
                self._wake_agent()
            self._over.wait(KILL_AGAIN_SECONDS)

    def _wake_agent(self) -> None:
        """End the agent's wait for a rank that exits with status 0 but without a result."""
        if not self._woke_agent:
            self._woke_agent = True
            # Unlike a signal this reaches every thread, and no handler can ignore it.
            raised = ctypes.py_object(AgentWoken)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._caller), raised)

    def _kill(self, number: int) -> bool:
        """Kill the rank; returns whether it was running, or had not started yet."""
        try:
            process = ProcessIdentity.parse(pid_path(self._scratch, number).read_text())
        except FileNotFoundError:  # not started yet; killed when it is
            return True
        return process.kill()
