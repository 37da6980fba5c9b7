"""Trials on torch's elastic agent, each in fresh processes of its own.

The processes are forked from a server that has imported torch once (`forkserver`), so a trial
starts in about a tenth of a second. The launching process sleeps while ranks run; it wakes every
`MONITOR_SECONDS` to see whether they have ended. A thread ends them when their time is over.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from os import getpid
from pathlib import Path
from time import monotonic
from typing import TypeVar

from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    TCPStore,
)
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dpbench.errors import Interrupted
from dpbench.launch import causes, rank, signals
from dpbench.launch.causes import RankTrace
from dpbench.launch.launcher import TrialOutcome, judge_trial
from dpbench.launch.load_meter import LoadMeter
from dpbench.launch.machine import Machine, in_child
from dpbench.launch.rank import OneHost, Part
from dpbench.launch.rank_killer import AgentWoken, RankKiller
from dpbench.launch.server import fork_server_process, server_end
from dpbench.measure.trial import RankReport, measure
from dpbench.rendezvous.launch_variables import LOOPBACK, USUAL_PORT
from dpbench.rendezvous.store import serve_store
from dpbench.specs import TrialSpec
from dpbench.store.process_identity import ProcessIdentity
from dpbench.temporary import temporary_folder

MONITOR_SECONDS = 0.05
SHUTDOWN_SECONDS = 1
"""Seconds from a signal, which ranks get too, until those that ignored it are killed."""
KILL_GRACE_SECONDS = 1.0
"""Seconds from the time limit, when ranks write their stacks, until they are killed."""
AGENT_LOGGERS = (
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.multiprocessing.spawn",
)

T = TypeVar("T")


class RanksFailed(Exception):
    """A rank did not return; `outcome` says which and why."""

    def __init__(self, outcome: TrialOutcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class PartFailed(Exception):
    """A rank of this host did not return; holds the traces from which the cause is found."""

    def __init__(self, traces: tuple[RankTrace, ...], outside: str | None = None) -> None:
        super().__init__("some ranks did not return")
        self.traces = traces
        self.outside = outside
        """External cause of the failure, if no rank caused it."""


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
    """Return [work(0), …, work(count - 1)], each from a fresh process with torch.distributed's
    environment variables set.

    The ranks meet in a file that only this user can read, as `rendezvous.process_group` knows;
    `over_tcp` has them meet at MASTER_ADDR and MASTER_PORT, for work that calls torch's own
    init_process_group. `work` must be picklable, unless they are forked. The ranks leave their
    output and traces in `scratch`; `shown` also prints their output, each line with the rank in
    front. Raises RanksFailed with the first cause, or Interrupted if a signal ended it; leaves no
    process behind.
    """
    with temporary_folder() as folder:
        meeting = None if over_tcp else OneHost(store_file=folder / "store")
        part = Part(count=count, meeting=meeting)
        try:
            return run_part(
                work,
                part,
                scratch,
                limit_seconds,
                start_method=start_method,
                shown=shown,
            )
        except PartFailed as failed:
            outcome = causes.explain(failed.traces, limit_seconds, outside=failed.outside)
            if outcome.reason == failed.outside:
                outcome = replace(outcome, from_outside=True)
            raise RanksFailed(outcome) from None


def run_part(
    work: Callable[[int], T],
    part: Part,
    scratch: Path,
    limit_seconds: float,
    *,
    stop: threading.Event | None = None,
    start_method: str = "forkserver",
    shown: bool = False,
) -> list[T]:
    """Do what `run_ranks` does, for the ranks of one host in their order.

    The ranks are killed when `stop` is set; this function sets it at the end in any case. Raises
    PartFailed.
    """
    server = fork_server_process() if start_method == "forkserver" else None
    silence_the_agent()
    # Held as long as this runs: anyone asking torch for a store on the port gets this one.
    store = serve_store(at_loopback=True) if part.meeting is None else None
    start = elastic_launch(
        _configuration(part.count, scratch, store, start_method, shown=shown), rank.main
    )
    started, launcher = monotonic(), ProcessIdentity.of(getpid())
    killer = RankKiller(
        scratch, part, limit_seconds + KILL_GRACE_SECONDS, stop or threading.Event()
    )
    try:
        with signals.handlers_kept(), killer:
            results = start(work, scratch, started + limit_seconds, launcher, part)
        return [results[number] for number in range(part.count)]
    except AgentWoken:
        exit_codes = {}
    except SignalException as error:
        raise Interrupted(error.sigval) from None
    except ChildFailedError as error:
        exit_codes = _first_exit_code(error, part)
    except (EOFError, ConnectionError):  # the server started no process
        exit_codes = {}
    killer.kill_ranks()
    traces = causes.collect(
        scratch,
        part.ranks,
        started,
        exit_codes=exit_codes,
        aborted=killer.aborted,
        overdue=killer.overdue,
    )
    raise PartFailed(traces, outside=server_end(server) if server else None)


class ElasticLauncher:
    """Runs trials on this host."""

    def __init__(
        self,
        machine: Machine,
        prepared: Path | Mapping[str, Path | None] | None,
        logs: Path,
        traces: Path | None = None,
    ) -> None:
        """`prepared` is the dataset's folder, or those of architectures by their names. Failed
        trials leave their ranks' output in `logs`, those with `trace_steps` their timelines in
        `traces`."""
        self._machine = machine
        self._prepared = prepared
        self.logs = logs
        self._traces = traces
        self.load_meter = LoadMeter(fork_server_process)
        in_child(os.getpid)  # starts the server, whose start the first trial would pay for

    def unusable_reason(self, trial: TrialSpec) -> str | None:
        if len(trial.nodes) > 1:
            return f"needs {len(trial.nodes)} hosts, and this one is alone: --nnodes"
        return self._machine.unusable_reason(trial)

    def work(self, trial: TrialSpec) -> Callable[[int], RankReport]:
        """The function that each rank of the trial on this host runs."""
        prepared = self._prepared
        if isinstance(prepared, Mapping):
            prepared = prepared[trial.workload.architecture]
        return partial(measure, trial, prepared, traces=self._traces)

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> TrialOutcome:
        with self.load_meter.around():
            outcome = self._run(trial, time_limit_seconds)
        return replace(outcome, host_load=self.load_meter.load)

    def _run(self, trial: TrialSpec, time_limit_seconds: float) -> TrialOutcome:
        work = self.work(trial)
        try:
            with scratch_folder(self.logs, trial.trial_id) as scratch:
                reports = run_ranks(
                    work,
                    trial.process_count,
                    scratch,
                    time_limit_seconds,
                )
        except RanksFailed as failed:
            return failed.outcome
        return judge_trial(trial, reports)


@contextmanager
def scratch_folder(logs: Path, name: str) -> Iterator[Path]:
    """A folder in `logs` for the files of ranks; it stays only if they failed."""
    scratch = logs / f"{name}-{uuid.uuid4().hex[:6]}"
    scratch.mkdir(parents=True)
    try:
        yield scratch
    except (RanksFailed, PartFailed):
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


def silence_the_agent() -> None:
    """Silence the agent, which logs each failed rank with a traceback; here that is a row with a
    reason."""
    for name in AGENT_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _configuration(
    process_count: int, scratch: Path, store: TCPStore | None, start_method: str, *, shown: bool
) -> LaunchConfig:
    """Configure an agent of this host only, without restarts; with the store on loopback if there
    is one."""
    rendezvous_handler_registry.register(NAME, AloneRendezvous)  # again does no harm
    configuration = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=process_count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="static" if store else NAME,
        rdzv_endpoint=f"{LOOPBACK}:{store.port}" if store else LOOPBACK,
        rdzv_configs={"rank": 0},
        local_addr=LOOPBACK,
        max_restarts=0,
        monitor_interval=MONITOR_SECONDS,
        start_method=start_method,
        log_line_prefix_template="[rank ${rank}] ",
        logs_specs=DefaultLogsSpecs(
            log_dir=str(scratch), redirects=Std.ALL, tee=Std.ALL if shown else Std.NONE
        ),
    )
    # torch before 2.9 does not have these: it handles all signals, and waits 30 s.
    configuration.signals_to_handle = signals.without_ignored()
    configuration.shutdown_timeout = SHUTDOWN_SECONDS
    return configuration


NAME = "dpbench-alone"


class AloneRendezvous(RendezvousHandler):
    """A rendezvous of one agent with itself; torch's agent calls its methods."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
        self._store = HashStore()

    def get_backend(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        return True  # the launcher serves the ranks' store, so no rank has to

    def next_rendezvous(self) -> RendezvousInfo:
        # The agent must give its ranks some address; nothing listens there.
        nowhere = RendezvousStoreInfo(LOOPBACK, USUAL_PORT)
        return RendezvousInfo(PrefixStore(self._run_id, self._store), 0, 1, nowhere)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing: nobody else could join."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def _first_exit_code(error: ChildFailedError, part: Part) -> dict[int, int]:
    """The rank that the agent found ended first, and its exit code; empty without one."""
    if not error.failures:
        return {}
    number, failure = min(error.failures.items(), key=lambda item: item[1].timestamp)
    return {part.first + number: failure.exitcode}
