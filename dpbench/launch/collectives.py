"""Measurements of collectives on this host, each in fresh processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path

from dpbench.launch.launcher import Outcome, attempts
from dpbench.launch.machine import Machine
from dpbench.launch.ranks import RanksFailed, run_ranks, scratch_folder
from dpbench.measure.collectives import measure_collective
from dpbench.records.collectives import CollectiveRecord, CollectiveSpec, RankCollectives
from dpbench.records.trial import Status


class HostCollectives:
    """Runs measurements on this host, one at a time; failures of a measurement never raise."""

    def __init__(self, machine: Machine, logs: Path) -> None:
        """Failed measurements leave their ranks' output in `logs`."""
        self._machine = machine
        self._logs = logs

    def unusable_reason(self, spec: CollectiveSpec) -> str | None:
        """Why this machine cannot run the measurement; None if it can."""
        return self._machine.unusable_backend_reason(spec.backend, spec.devices)

    def run(self, spec: CollectiveSpec, time_limit_seconds: float) -> Outcome:
        """Run the measurement in separate processes, and leave none behind."""
        work = partial(measure_collective, spec)
        try:
            with scratch_folder(self._logs, spec.collective_id) as scratch:
                reports = run_ranks(work, spec.group_size, scratch, time_limit_seconds)
        except RanksFailed as failed:
            return failed.outcome
        measured = tuple(report for report in reports if isinstance(report, RankCollectives))
        if len(measured) == len(reports):
            return Outcome(status=Status.COMPLETED, ranks=measured)
        wrong = next(report for report in reports if isinstance(report, str) and report)
        return Outcome(status=Status.FAILED, reason=f"wrong result: {wrong}")


def run_collectives(
    specs: Iterable[CollectiveSpec],
    launcher: HostCollectives,
    *,
    environment_id: str,
    time_limit_seconds: float,
    on_start: Callable[[CollectiveSpec], None] | None = None,
) -> Iterator[CollectiveRecord]:
    """Run one measurement after the other; `on_start` is called before each.

    A measurement ended from outside, such as by the kernel's out-of-memory killer, is retried once.
    """

    def refuse(spec: CollectiveSpec) -> Outcome | None:
        reason = launcher.unusable_reason(spec)
        return Outcome(status=Status.SKIPPED, reason=reason) if reason else None

    for spec, outcome, timing in attempts(
        specs,
        lambda spec: launcher.run(spec, time_limit_seconds),
        refuse,
        label=attrgetter("label"),
        on_start=on_start,
    ):
        yield CollectiveRecord(
            collective=spec,
            environment_id=environment_id,
            status=outcome.status,
            reason=outcome.reason,
            ranks=outcome.ranks,
            **timing,
        )
