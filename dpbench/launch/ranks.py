"""Ranks of this node in fresh processes of their own, and the first cause when one of them fails.

The processes are forked from a server that has imported torch once (`forkserver`), so a trial
starts in about a tenth of a second. The launching process sleeps in the kernel until a rank has a
result or ends.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from dpbench.files import folder_name
from dpbench.launch.failures import (
    SERVER_GONE,
    FailureKind,
    RankFailure,
    RanksFailed,
    failure_of_end,
    failure_of_hang,
)
from dpbench.launch.fork_server import end_fork_server, fork_server
from dpbench.launch.rank_process import main_thread_stack, rank_main
from dpbench.rendezvous.barrier import POLL_SECONDS
from dpbench.rendezvous.placement import Placement
from dpbench.temporary import temporary_folder

KILL_GRACE_SECONDS = 1.0
"""Seconds from the time limit, when ranks write their stacks, until they are killed."""
AFTERMATH_SECONDS = 0.3
"""Seconds from a failure in which those of other ranks, its consequences, are heard."""
CAUSE_SECONDS = 1.0
"""Seconds from a lost connection in which the end of the rank that caused it is heard."""
EXIT_SECONDS = 5.0
"""Seconds that ranks with a result may take to exit."""
PART_BYTES = 2**20
MAX_WAIT_SECONDS = 3600.0
"""Longest single wait: poll(2) takes no more than 24 days, and a training may last a year."""

T = TypeVar("T")


def run_one_rank(call: Callable[[int], T], time_limit_seconds: float) -> T:
    """The result of call(0) from a rank of its own. Raises RanksFailed."""
    with temporary_folder() as scratch:
        (result,) = run_ranks(call, 1, scratch, time_limit_seconds)
    return result


def run_ranks(
    call: Callable[[int], T],
    count: int,
    scratch: Path,
    time_limit_seconds: float,
    *,
    place: Placement | None = None,
    stop: Callable[[], bool] | None = None,
    start_method: str = "forkserver",
) -> list[T]:
    """Return what `call` returns for each of the `count` ranks on this node, from fresh processes.

    Args:
        call: gets its rank; picklable, unless the ranks are forked.
        scratch: where the ranks leave their output and stacks.
        place: the first rank's place, with the store where they meet. None means that
            there are no others, and that they meet in a file which only this user can read.
        stop: the ranks are killed when it returns True.

    Raises RanksFailed with the first cause; leaves no process behind, whatever is raised.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    forks = start_method == "forkserver"
    context: Any = fork_server() if forks else multiprocessing.get_context(start_method)
    started = monotonic()  # the start of the server takes none of the ranks' time
    processes: list[_RankProcess] = []
    with temporary_folder() as folder:
        first = place or Placement.first_of(count, store_file=str(folder / "store"))
        # The server of ranks has the variables of when it started.
        here = {**first.interface_variables, **os.environ}
        try:
            for number in range(count):
                own = replace(first, rank=first.rank + number, local_rank=number)
                environment = {**here, **own.variables}
                limits = (started, time_limit_seconds)
                try:
                    process = _RankProcess(context, own.rank, (call, scratch, *limits, environment))
                except BaseException as error:  # Ctrl-C, after which the rank may come up
                    end_fork_server()
                    if isinstance(error, EOFError | ConnectionError):
                        raise RanksFailed([failure_of_end(own.rank, SERVER_GONE)]) from None
                    raise
                processes.append(process)
            results = _collect(processes, scratch, started, time_limit_seconds, stop)
            for process in processes:  # lets them exit, now that all have results
                with suppress(OSError):
                    process.connection.send(None)
            for process in processes:
                process.child.join(EXIT_SECONDS)
            return results
        finally:
            for process in processes:  # all, before any is waited for
                process.kill()
            for process in processes:
                process.close()


def _collect(
    processes: Sequence[_RankProcess],
    scratch: Path,
    started: float,
    time_limit_seconds: float,
    stop: Callable[[], bool] | None,
) -> list[Any]:
    """The results of all processes, in their order; raises RanksFailed, also if `stop` says so."""
    deadline = started + time_limit_seconds + KILL_GRACE_SECONDS
    waiting = [*processes]
    results: dict[int, Any] = {}
    failures: list[RankFailure] = []
    while waiting and not (stop and stop()):
        left = deadline - monotonic()
        if left <= 0:
            failures = failures or [
                failure_of_hang(busy.rank, main_thread_stack(scratch, busy.rank))
                for busy in waiting
            ]
            break
        handles = [handle for busy in waiting for handle in (busy.connection, busy.child.sentinel)]
        wait_for_any(handles, min(left, MAX_WAIT_SECONDS if stop is None else POLL_SECONDS))
        for process in [*waiting]:
            if answer := process.answer():
                waiting.remove(process)
                results[process.rank], failed = answer
                if failed:
                    is_lost_peer = failed.kind is FailureKind.LOST_PEER
                    longest = CAUSE_SECONDS if is_lost_peer else AFTERMATH_SECONDS
                    deadline = min(deadline, monotonic() + longest)
                    failures.append(failed)
    if waiting or failures:
        raise RanksFailed(failures, time_limit_seconds)
    return [results[process.rank] for process in processes]


class _RankProcess:
    """The process of a rank, and the pipe from it, which carries the result or the failure."""

    def __init__(self, context: Any, rank: int, arguments: tuple[Any, ...]) -> None:
        """Start it; `arguments` are those of `rank_main` without the connection."""
        self.rank = rank
        self.connection, end_in_rank = context.Pipe()
        self._received = bytearray()
        self.child: BaseProcess = context.Process(target=rank_main, args=(*arguments, end_in_rank))
        try:
            self.child.start()
        finally:
            end_in_rank.close()

    def answer(self) -> tuple[Any, RankFailure | None] | None:
        """The result, and how the rank failed if it did; None if it is busy."""
        is_over = bool(wait_for_any([self.child.sentinel], 0))
        with suppress(OSError):  # it has ended
            while self.connection.poll():  # never waits, as a rank may stop anywhere
                part = os.read(self.connection.fileno(), PART_BYTES)
                self._received += part
                if not part:
                    is_over = True
                    break
        if not is_over:
            return None
        with suppress(EOFError, pickle.UnpicklingError):  # it has ended before all was sent
            result, failure = pickle.loads(self._received)
            return result, failure
        self.child.join(EXIT_SECONDS)
        return None, failure_of_end(self.rank, self.child.exitcode or 0)

    def kill(self) -> None:
        """Kill it if it is still running, with what it has started."""
        with suppress(OSError):  # it leads no process group yet, or has ended
            if self.child.pid and self.child.is_alive():
                os.killpg(self.child.pid, signal.SIGKILL)
        self.child.kill()

    def close(self) -> None:
        self.child.join(EXIT_SECONDS)
        self.connection.close()
        with suppress(ValueError):  # not even SIGKILL has ended it yet
            # A rank whose server was killed cannot be killed by its number, which another process
            # may have by now; it ends by itself when the pipe from here is closed.
            self.child.close()


@contextmanager
def scratch_folder(logs: Path, label: str) -> Iterator[Path]:
    """A folder in `logs` for the files of the ranks of a row with that label; it stays only if they
    failed."""
    scratch = logs / f"{folder_name(label.replace('/', '-'))}-{uuid.uuid4().hex[:6]}"
    scratch.mkdir(parents=True)
    try:
        yield scratch
    except BaseException as error:
        if not isinstance(error, RanksFailed):
            remove_scratch(scratch)
        raise
    remove_scratch(scratch)


def remove_scratch(scratch: Path) -> None:
    """Delete the folder of completed ranks, and the folder of all logs if it is empty then."""
    shutil.rmtree(scratch)
    with suppress(OSError):
        scratch.parent.rmdir()
