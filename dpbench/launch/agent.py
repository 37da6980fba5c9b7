"""Trials on torch's elastic agent, each in fresh processes of its own.

The processes are forked from a server that has imported torch once (`forkserver`), so a trial
starts in about a tenth of a second. The launching process sleeps while ranks run; it wakes
`1 / MONITOR_SECONDS` times a second to see whether they ended.
"""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from os import getpid, kill
from pathlib import Path
from time import monotonic
from typing import TypeVar

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dpbench.errors import Interrupted, LaunchError
from dpbench.launch import causes, rank
from dpbench.launch.launcher import Outcome
from dpbench.launch.machine import Machine, in_child
from dpbench.launch.outcome import judge
from dpbench.launch.server import fork_server
from dpbench.live import LivePage, can_open
from dpbench.measure.trial import measure
from dpbench.specs import TrialSpec

MONITOR_SECONDS = 0.05
KILL_GRACE_SECONDS = 1.0
"""From the time limit, when ranks write their stacks, until they are killed."""
PORT_ATTEMPTS = 5
HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
AGENT_LOGGERS = (
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.multiprocessing.spawn",
)

T = TypeVar("T")


class RanksFailed(Exception):
    """Some rank did not return; `outcome` says which and why."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def run_ranks(work: Callable[[int], T], count: int, scratch: Path, limit_seconds: float) -> list[T]:
    """Returns [work(0), …, work(count - 1)], each from a fresh process with torch.distributed's
    environment variables set.

    `work` must be picklable. The ranks leave their output and traces in `scratch`. Raises
    RanksFailed with the first cause, Interrupted when a signal ended it; no process is left.
    """
    fork_server()
    _silence_the_agent()
    for attempt in range(1, PORT_ATTEMPTS + 1):
        start = elastic_launch(_configuration(count, scratch), rank.main)
        try:
            with _own_signals(), _killed_after(limit_seconds + KILL_GRACE_SECONDS, scratch, count):
                results = start(work, scratch, monotonic() + limit_seconds, getpid())
            return [results[number] for number in range(count)]
        except SignalException as error:
            raise Interrupted(error.sigval) from None
        except ChildFailedError as error:
            ended = _first_ended(error)
            raise RanksFailed(causes.explain(scratch, count, ended, limit_seconds)) from None
        except EOFError:
            raise LaunchError("the server that starts the ranks has ended; see above") from None
        except RuntimeError as error:
            if "address already in use" not in str(error).lower() or attempt == PORT_ATTEMPTS:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


class ElasticLauncher:
    """Runs trials on this host."""

    def __init__(
        self,
        machine: Machine,
        prepared: Path | None,
        logs: Path,
        traces: Path | None = None,
        page: LivePage | None = None,
    ) -> None:
        """`prepared` is the dataset's folder; failed trials leave their ranks' output in `logs`,
        those with `trace_steps` their timelines in `traces`. Ranks tell their steps to `page`."""
        self._machine = machine
        self._prepared = prepared
        self._logs = logs
        self._traces = traces
        self._live = page.address if page else None
        # Starts the server as well, so that its start is not the first trial's.
        visible = in_child(partial(can_open, self._live))
        if page:
            page.say_steps_are_visible(visible)

    def unusable_reason(self, trial: TrialSpec) -> str | None:
        return self._machine.unusable_reason(trial)

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome:
        scratch = self._logs / f"{trial.trial_id}-{uuid.uuid4().hex[:6]}"
        scratch.mkdir(parents=True)
        work = partial(measure, trial, self._prepared, traces=self._traces, live=self._live)
        try:
            reports = run_ranks(work, trial.process_count, scratch, time_limit_seconds)
        except RanksFailed as failed:
            return failed.outcome
        except BaseException:
            remove_scratch(scratch)
            raise
        remove_scratch(scratch)
        return judge(trial, reports)


def remove_scratch(scratch: Path) -> None:
    """Deletes the folder of completed ranks, and that of all logs if it was the only one."""
    shutil.rmtree(scratch)
    with suppress(OSError):
        scratch.parent.rmdir()


def _silence_the_agent() -> None:
    """The agent logs each failed rank with a traceback; here that is a row with a reason."""
    for name in AGENT_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _configuration(process_count: int, scratch: Path) -> LaunchConfig:
    """One node, a fresh store on a free port of the loopback, no restarts."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=process_count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{_free_port()}",
        rdzv_configs={"rank": 0},
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=MONITOR_SECONDS,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(scratch), redirects=Std.ALL),
    )


def _free_port() -> int:
    """A port that was free a moment ago; a launch that loses the race tries another."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _first_ended(error: ChildFailedError) -> causes.SilentEnd | None:
    if not error.failures:
        return None
    number, failure = min(error.failures.items(), key=lambda item: item[1].timestamp)
    return causes.SilentEnd(rank=number, exit_code=failure.exitcode)


@contextmanager
def _killed_after(seconds: float, scratch: Path, rank_count: int) -> Iterator[None]:
    """Kills what is left of the ranks after `seconds`, wherever they hang."""

    def kill_ranks() -> None:
        for number in range(rank_count):
            with suppress(OSError, ValueError):
                kill(int(rank.pid_path(scratch, number).read_text()), signal.SIGKILL)

    timer = threading.Timer(seconds, kill_ranks)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _own_signals() -> Iterator[None]:
    """The agent installs handlers and leaves them; puts the launching process's own back."""
    before = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)
