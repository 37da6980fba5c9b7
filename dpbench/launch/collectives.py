"""Measurements of collectives on torch's elastic agent, each in fresh processes of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Protocol

from dpbench.collectives import CollectiveRecord, CollectiveSpec, RankCollectives
from dpbench.launch.agent import RanksFailed, remove_scratch, run_ranks
from dpbench.launch.machine import Machine
from dpbench.measure.collectives import WrongResult, measure_collective
from dpbench.records import Status


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveOutcome:
    """How the processes of one measurement ended; `reason` says why when not completed."""

    status: Status
    reason: str | None = None
    ranks: tuple[RankCollectives, ...] = ()
    from_outside: bool = False
    """Something ended it that is none of its ranks, as kill -9 does."""


class CollectiveLauncher(Protocol):
    """Runs measurements one at a time; never raises for what one does."""

    def unusable_reason(self, spec: CollectiveSpec) -> str | None:
        """Why this machine cannot run it; None if it can."""
        ...

    def run(self, spec: CollectiveSpec, time_limit_seconds: float) -> CollectiveOutcome:
        """Runs it in processes of its own and leaves none behind."""
        ...


class ElasticCollectives:
    """Runs measurements on this host."""

    def __init__(self, machine: Machine, logs: Path) -> None:
        """Failed measurements leave their ranks' output in `logs`."""
        self._machine = machine
        self._logs = logs

    def unusable_reason(self, spec: CollectiveSpec) -> str | None:
        return self._machine.unusable_backend_reason(spec.backend, spec.devices)

    def run(self, spec: CollectiveSpec, time_limit_seconds: float) -> CollectiveOutcome:
        scratch = self._logs / f"{spec.collective_id}-{uuid.uuid4().hex[:6]}"
        scratch.mkdir(parents=True)
        work = partial(measure_collective, spec)
        try:
            # As in all results so far: collectives are timed on buffers that are never freed.
            reports = run_ranks(
                work, spec.group_size, scratch, time_limit_seconds, keep_memory=True
            )
        except RanksFailed as failed:
            return CollectiveOutcome(
                status=failed.outcome.status,
                reason=failed.outcome.reason,
                from_outside=failed.outcome.from_outside,
            )
        except BaseException:
            remove_scratch(scratch)
            raise
        remove_scratch(scratch)
        return judge(reports)


def judge(reports: Sequence[RankCollectives | WrongResult]) -> CollectiveOutcome:
    """Completed if every rank has measured, failed with the first wrong result if not."""
    measured = tuple(report for report in reports if isinstance(report, RankCollectives))
    if len(measured) == len(reports):
        return CollectiveOutcome(status=Status.COMPLETED, ranks=measured)
    texts = (report.text for report in reports if isinstance(report, WrongResult) and report.text)
    return CollectiveOutcome(status=Status.FAILED, reason=f"wrong result: {next(texts)}")


def run(
    specs: Iterable[CollectiveSpec],
    launcher: CollectiveLauncher,
    *,
    environment_id: str,
    time_limit_seconds: float,
    on_start: Callable[[CollectiveSpec], None] | None = None,
    on_second_try: Callable[[CollectiveSpec, str], None] | None = None,
) -> Iterator[CollectiveRecord]:
    """Runs one measurement after the other; `on_start` hears of each before it starts.

    One that was ended from outside, as by the kernel for want of memory, is tried once more, and
    `on_second_try` hears why.
    """
    for spec in specs:
        if on_start:
            on_start(spec)
        started_utc = datetime.now(UTC).isoformat(timespec="milliseconds")
        started = monotonic()
        first_reason: str | None = None
        if reason := launcher.unusable_reason(spec):
            outcome = CollectiveOutcome(status=Status.SKIPPED, reason=reason)
        else:
            outcome = launcher.run(spec, time_limit_seconds)
        if outcome.from_outside:
            first_reason = outcome.reason or "it was ended from outside"
            if on_second_try:
                on_second_try(spec, first_reason)
            outcome = launcher.run(spec, time_limit_seconds)
        yield CollectiveRecord(
            collective=spec,
            environment_id=environment_id,
            started_utc=started_utc,
            duration_seconds=monotonic() - started,
            status=outcome.status,
            reason=outcome.reason,
            ranks=outcome.ranks,
            tried_again_after=first_reason,
        )
