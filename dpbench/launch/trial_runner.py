"""Trials on this node, each in fresh processes of its own, and the status of their records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter, process_time
from typing import TypeVar

import psutil

from dpbench.launch.failures import RanksFailed
from dpbench.launch.fork_server import fork_server, server_pid
from dpbench.launch.machine import Machine
from dpbench.launch.ranks import run_one_rank, run_ranks, scratch_folder
from dpbench.launch.script import measure_script
from dpbench.measure.trial import measure_trial
from dpbench.messages import say
from dpbench.records.environment import core_numbers
from dpbench.records.trial import HostLoad, RankMeasurement, Record, Status, TrialRecord
from dpbench.rendezvous.placement import Placement
from dpbench.rendezvous.store import serve_store
from dpbench.specs import Configuration, plain_label

R = TypeVar("R", bound=Record)

START_SECONDS = 180.0
"""Python and torch start in seconds, but on a machine that is short of memory in minutes."""


class TrialRunner:
    """Runs trials on this node, one at a time; a trial that fails has a record, too."""

    load: HostLoad | None = None
    """The load of other processes before the first trial; None if it cannot be read."""
    machines: tuple[Machine, ...]
    """The machines of all nodes."""

    def __init__(self, machine: Machine, logs: Path, prepared: Path | None = None) -> None:
        """Failed trials leave their ranks' output in `logs`; the folder `prepared` has the
        datasets of `registry.prepare_dataset`. Raises RanksFailed if no rank can be started."""
        self.machines = (machine,)
        self._prepared = prepared
        self.logs = logs
        meter = LoadMeter()
        run_one_rank(int, START_SECONDS)  # the first trial would pay for the server's start
        self.load = meter.load()

    def unusable_reason(self, configuration: Configuration) -> str | None:
        """Why this machine cannot run the configuration; None if it can."""
        return self.machines[0].unusable_reason(configuration)

    def rank_function(
        self, configuration: Configuration, repetition: int
    ) -> Callable[[int], RankMeasurement]:
        """The function that each rank of the trial on this node runs."""
        return partial(measure_trial, configuration, repetition, self._prepared)

    def run(
        self, configuration: Configuration, repetition: int, time_limit_seconds: float
    ) -> TrialRecord:
        """Run the trial in separate processes, and leave none behind. Its record lacks the
        repetition, and what `recorded` adds."""
        deadline, meter = monotonic() + time_limit_seconds, LoadMeter()
        try:
            with scratch_folder(self.logs, plain_label(configuration)) as scratch:
                call, place = self.rank_function(configuration, repetition), None
                count = configuration.process_count
                if configuration.workload.script:
                    call = partial(measure_script, configuration, scratch.absolute(), deadline)
                    store = serve_store()  # until the ranks have ended
                    place = Placement.first_of(count, store.port)
                ranks = run_ranks(call, count, scratch, time_limit_seconds, place=place)
            record = record_of_ranks(configuration, ranks)
        except RanksFailed as failed:
            record = TrialRecord(configuration=configuration, **failed.outcome)
        return replace(record, host_load=meter.load())


def recorded(label: str, run: Callable[[], R], environment_ids: Sequence[str]) -> R:
    """The record of `run`, with the time and the environments in which it ran.

    It runs once more, and the user reads why, if something outside killed it, such as the kernel's
    out-of-memory killer.
    """
    started_utc = datetime.now(UTC).isoformat(timespec="milliseconds")
    started = monotonic()
    first_reason: str | None = None
    record = run()
    if record.killed:
        first_reason = record.reason or "it was ended from outside"
        say(f"{label}: {first_reason}; it is tried once more")
        record = run()
    return replace(
        record,
        tried_again_after=first_reason,
        started_utc=started_utc,
        duration_seconds=monotonic() - started,
        environment_ids=tuple(environment_ids),
    )


def record_of_ranks(configuration: Configuration, ranks: Sequence[RankMeasurement]) -> TrialRecord:
    """The record: completed, unless gradients were wrong, replicas ended with different
    parameters, or the loss is not finite."""
    record = TrialRecord(configuration=configuration, status=Status.COMPLETED, ranks=tuple(ranks))
    verification = record.facts.verification
    traits = configuration.traits
    checksums = {rank.final_checksum for rank in ranks}
    losses = ((step, loss) for rank in ranks for step, loss in enumerate(rank.timed.losses, 1))
    diverged = [step for step, loss in losses if not math.isfinite(loss)]
    if verification is not None and not verification.passed:
        reason = (
            f"gradients differ from one process by {verification.max_relative_error:.2g} relative "
            f"(tolerance {verification.tolerance:.0e}), worst in {verification.worst_parameter}"
            + ("; no layer may mix samples of different replicas" if traits.one_process else "")
        )
        return replace(record, status=Status.WRONG_GRADIENTS, reason=reason)
    if traits.communicates and len(checksums) > 1:
        reason = "replicas hold different parameters after the timed window"
        return replace(record, status=Status.WRONG_GRADIENTS, reason=reason)
    if diverged:
        reason = f"the loss is not finite at timed step {min(diverged)}"
        return replace(record, status=Status.DIVERGED, reason=reason)
    return record


class LoadMeter:
    """Measures the load of other processes on the usable cores from now on.

    This process, the server that ranks are forked from, and the ranks that have ended, are dpbench.
    """

    def __init__(self) -> None:
        fork_server()
        self._server = server_pid()
        self._start = self._read()

    def load(self) -> HostLoad | None:
        """The mean load until now; None if it cannot be read."""
        end = self._read()
        if self._start is None or end is None:
            return None
        seconds, others, stolen = (b - a for a, b in zip(self._start, end, strict=True))
        return HostLoad(
            cores=len(core_numbers()),
            during=max(0.0, others) / seconds,
            stolen=max(0.0, stolen) / seconds,
        )

    def _read(self) -> tuple[float, float, float] | None:
        """Three clocks in seconds: the time; core time of other processes, neither idle nor waiting
        for a disk; core time that the hypervisor gave to other guests. None if unreadable."""
        try:
            # The last two times of the server are those of its children.
            of_dpbench = process_time() + sum(psutil.Process(self._server).cpu_times()[:4])
            times = psutil.cpu_times(percpu=True)
            cores = [times[number] for number in core_numbers()]
            # Time of guests is in that of their users already.
            busy = sum(
                sum(core) - core.guest - core.guest_nice - core.idle - core.iowait - core.steal
                for core in cores
            )
            return perf_counter(), busy - of_dpbench, sum(core.steal for core in cores)
        except (psutil.Error, AttributeError, IndexError):  # not Linux, or the server has ended
            return None
