"""Ranks of this host in fresh processes of their own, and the first cause when one of them fails.

The processes are forked from a server that has imported torch once (`forkserver`), so a trial
starts in about a tenth of a second. The launching process sleeps in the kernel until a rank has a
result or ends.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from dpbench.architecture import folder_name
from dpbench.errors import LaunchError
from dpbench.launch import rank
from dpbench.launch.causes import SERVER_GONE, RankTrace, hang_of, outcome_of
from dpbench.launch.fork_server import end_fork_server, fork_server
from dpbench.launch.outcome import Outcome
from dpbench.launch.placement import Placement
from dpbench.rendezvous.launch_variables import LOOPBACK, OF_WORKERS
from dpbench.rendezvous.store import STORE_FILE, file_variables, serve_store
from dpbench.temporary import temporary_folder

KILL_GRACE_SECONDS = 1.0
"""Seconds from the time limit, when ranks write their stacks, until they are killed."""
AFTERMATH_SECONDS = 0.3
"""Seconds from a failure in which those of other ranks, its consequences, are heard."""
CAUSE_SECONDS = 1.0
"""Seconds from a lost connection in which the end of the rank that caused it is heard."""
EXIT_SECONDS = 5.0
"""Seconds that ranks with a result may take to exit."""
POLL_SECONDS = 0.1
"""Seconds between two calls of `stop`, whose cause the kernel cannot wait for."""
LONGEST_WAIT_SECONDS = 3600.0
"""Longest single wait: poll(2) takes no more than 24 days, and a training may last a year."""

T = TypeVar("T")


class RanksFailed(LaunchError):
    """A rank did not return; `traces` says how each failed that was not ended because of another,
    and `outcome` the first cause among them, which is also the message."""

    def __init__(self, traces: Sequence[RankTrace], limit_seconds: float) -> None:
        self.traces = tuple(traces)
        self.outcome: Outcome = outcome_of(traces, limit_seconds)
        super().__init__(self.outcome.reason)


def run_ranks(
    work: Callable[[int], T],
    count: int,
    scratch: Path,
    limit_seconds: float,
    *,
    start_method: str = "forkserver",
    shown: bool = False,
    over_tcp: bool = False,
) -> list[T]:
    """Return [work(0), …, work(count - 1)], each from a fresh process with the environment
    variables of torchrun.

    The ranks meet in a file that only this user can read, as `rendezvous.process_group` knows;
    `over_tcp` has them meet at MASTER_ADDR and MASTER_PORT, for work that calls torch's own
    init_process_group. `work` must be picklable, unless they are forked. The ranks leave their
    output and stacks in `scratch`; `shown` also prints their output, each line with the rank in
    front. Raises RanksFailed with the first cause; leaves no process behind, whatever is raised.
    """
    first = Placement(rank=0, size=count, local_size=count, address=LOOPBACK)
    with ExitStack() as stack:
        if over_tcp:
            # Held until the end: torch's own clients in the ranks connect to it.
            store = serve_store(at_loopback=True)
            first = replace(first, port=store.port)
            # Under dpbench launch this process has a file to meet in, which is not the ranks'.
            variables = {STORE_FILE: ""}
        else:
            variables = file_variables(stack.enter_context(temporary_folder()) / "store")
        return run_host_ranks(
            work,
            first,
            variables,
            scratch,
            limit_seconds,
            start_method=start_method,
            shown=shown,
        )


def run_in_rank(work: Callable[[int], T], limit_seconds: float) -> T:
    """The result of work(0) from a rank of its own. Raises RanksFailed."""
    with temporary_folder() as scratch:
        (result,) = run_ranks(work, 1, scratch, limit_seconds)
    return result


def run_host_ranks(
    work: Callable[[int], T],
    first: Placement,
    variables: Mapping[str, str],
    scratch: Path,
    limit_seconds: float,
    *,
    stop: Callable[[], bool] | None = None,
    start_method: str = "forkserver",
    shown: bool = False,
) -> list[T]:
    """Do what `run_ranks` does, for the ranks of one of several hosts.

    Args:
        first: the place of the first of them; they are consecutive.
        variables: by which all ranks find each other.
        stop: the ranks are killed when it returns True.

    Raises RanksFailed, whose traces are those of this host.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    if start_method == "forkserver":
        fork_server()  # its start takes none of the ranks' time
    started = monotonic()
    arguments = (work, scratch, started, limit_seconds)
    deadline = started + limit_seconds + KILL_GRACE_SECONDS
    ranks: list[_RunningRank] = []
    results: dict[int, T] = {}
    traces: list[RankTrace] = []
    with ExitStack() as stack:
        if shown:
            stack.enter_context(_printing(scratch, first.local_size))
        stack.callback(_end, ranks)
        try:
            for number in range(first.local_size):
                place = replace(first, rank=first.rank + number, local_rank=number)
                environment = place.variables | OF_WORKERS | dict(variables)
                ranks.append(_start(place.rank, (*arguments, environment), start_method))
        except (EOFError, ConnectionError):
            end_fork_server()
            end = RankTrace(rank=place.rank, exit_code=SERVER_GONE)
            raise RanksFailed([end], limit_seconds) from None
        except BaseException:  # Ctrl-C, after which a rank may come up that is not in `ranks`
            end_fork_server()
            raise
        waiting = [*ranks]
        while waiting and not (stop and stop()):
            left = deadline - monotonic()
            if left <= 0:
                traces = traces or [hang_of(scratch, one.rank) for one in waiting]
                break
            handles = [
                handle for one in waiting for handle in (one.connection, one.process.sentinel)
            ]
            wait_for_any(handles, min(left, LONGEST_WAIT_SECONDS if stop is None else POLL_SECONDS))
            for one in [*waiting]:
                if answer := one.answer():
                    waiting.remove(one)
                    results[one.rank], trace = answer
                    if trace:
                        lost_peer = trace.failure is not None and trace.failure.lost_peer
                        longest = CAUSE_SECONDS if lost_peer else AFTERMATH_SECONDS
                        deadline = min(deadline, monotonic() + longest)
                        traces.append(trace)
        if waiting or traces:
            raise RanksFailed(traces, limit_seconds)
        for one in ranks:  # lets them exit, now that all have results
            with suppress(OSError):
                one.connection.send(None)
        for one in ranks:
            one.process.join(EXIT_SECONDS)
        return [results[one.rank] for one in ranks]


@dataclass(frozen=True, kw_only=True, slots=True)
class _RunningRank:
    """A rank that this process has started."""

    rank: int
    process: BaseProcess
    connection: Connection
    """Carries the result or the failure."""

    def answer(self) -> tuple[Any, RankTrace | None] | None:
        """The result, and how the rank failed if it did; None if it is busy."""
        has_ended = bool(wait_for_any([self.process.sentinel], 0))
        try:
            if self.connection.poll():
                result, failure = self.connection.recv()
                return result, RankTrace(rank=self.rank, failure=failure) if failure else None
            if not has_ended:
                return None
        except (EOFError, OSError):
            pass  # it has ended
        self.process.join(EXIT_SECONDS)
        return None, RankTrace(rank=self.rank, exit_code=self.process.exitcode or 0)


def _start(number: int, arguments: tuple[Any, ...], start_method: str) -> _RunningRank:
    forks = start_method == "forkserver"
    context: Any = fork_server() if forks else multiprocessing.get_context(start_method)
    ours, theirs = context.Pipe()
    process = context.Process(target=rank.run_rank, args=(*arguments, theirs))
    try:
        process.start()
    finally:
        theirs.close()
    return _RunningRank(rank=number, process=process, connection=ours)


def _end(ranks: list[_RunningRank]) -> None:
    """Kill those that are still running, with what they have started."""
    for one in ranks:
        with suppress(OSError):  # it leads no process group yet, or has ended
            if one.process.pid and one.process.is_alive():
                os.killpg(one.process.pid, signal.SIGKILL)
        one.process.kill()
    for one in ranks:
        one.process.join(EXIT_SECONDS)
        one.connection.close()
        with suppress(ValueError):  # not even SIGKILL has ended it yet
            # A rank whose server was killed cannot be killed by its number, which another process
            # may have by now; it ends by itself when the pipe from here is closed.
            one.process.close()


@contextmanager
def _printing(scratch: Path, count: int) -> Iterator[None]:
    """Print what the ranks write, each line with the rank in front."""
    prefixes = {number: f"[rank {number}] " for number in range(count)}
    tails = []
    for name in rank.STREAMS:
        files = {number: str(rank.output_path(scratch, number, name)) for number in range(count)}
        tails.append(TailLog("rank", files, getattr(sys, name), prefixes).start())
    try:
        yield
    finally:
        for tail in tails:
            tail.stop()


@contextmanager
def scratch_folder(logs: Path, label: str) -> Iterator[Path]:
    """A folder in `logs` for the files of the ranks of a row with that label; it stays only if they
    failed."""
    scratch = logs / f"{folder_name(label.replace('/', '-'))}-{uuid.uuid4().hex[:6]}"
    scratch.mkdir(parents=True)
    try:
        yield scratch
    except RanksFailed:
        raise
    except BaseException:
        remove_scratch(scratch)
        raise
    remove_scratch(scratch)


def remove_scratch(scratch: Path) -> None:
    """Delete the folder of completed ranks, and the folder of all logs if it is empty then."""
    shutil.rmtree(scratch)
    with suppress(OSError):
        scratch.parent.rmdir()
