"""Measures the planned collectives and stores their records."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench import store, units
from dpbench.errors import Interrupted
from dpbench.files import folder_inside
from dpbench.launch.machine import Machine
from dpbench.messages import say
from dpbench.records.collectives import CollectiveRecord, CollectiveSpec
from dpbench.records.trial import Status
from dpbench.report.plan import Planned
from dpbench.report.progress.trials import Reporter
from dpbench.run.interrupts import as_exceptions, end_at_once
from dpbench.run.this_machine import environment_here, test_launchers
from dpbench.store import LOGS_FOLDER, CollectiveStore, StoredCollectives

if TYPE_CHECKING:
    from dpbench.launch.collectives import HostCollectives


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One invocation of `dpbench comm`."""

    specs: tuple[CollectiveSpec, ...]
    folder: Path
    time_limit_seconds: float
    command: Sequence[str]
    """The command line after "dpbench"."""
    quiet: bool


def measure_collectives(job: Job, machine: Machine) -> StoredCollectives:
    """Measure what is not stored yet.

    Raises Interrupted, with what was stored, when a signal ends it.
    """
    from dpbench.launch.collectives import run_collectives

    waiting, environment = _waiting(job), environment_here(machine)
    launcher = _launcher(job, machine)
    with (
        CollectiveStore.append_to(job.folder, job.command) as results,
        as_exceptions(),
    ):
        results.add_environment(environment)
        try:
            with Reporter(quiet=job.quiet, noun="measurement") as progress:
                progress.planned(waiting)
                for record in run_collectives(
                    waiting,
                    launcher,
                    environment_id=environment.environment_id,
                    time_limit_seconds=job.time_limit_seconds,
                    on_start=progress.started,
                ):
                    results.append(record)
                    progress.finished(record)
        except (KeyboardInterrupt, Interrupted) as error:
            number = getattr(error, "signal_number", signal.SIGINT)
            left = len(_missing(job))
            raise Interrupted(
                number,
                f"interrupted; stored in {job.folder}: {len(job.specs) - left} of "
                f"{units.counted(len(job.specs), 'measurement')}; "
                f"to finish: the same command with --name {job.folder.name}",
            ) from None
    return store.load_collectives(job.folder)


def plan_collectives(job: Job, machine: Machine) -> list[Planned[CollectiveSpec]]:
    """The planned measurements, one row per configuration by first run; skipped ones have a
    reason."""
    waiting = _waiting(job)
    launcher = _launcher(job, machine)
    store.check_place(job.folder)
    reasons = {
        spec: launcher.unusable_reason(spec)
        for spec in dict.fromkeys(spec.configuration for spec in waiting)
    }
    runs = Counter(one.configuration for one in waiting if not reasons[one.configuration])
    return [Planned(spec=spec, runs=runs[spec], reason=reason) for spec, reason in reasons.items()]


def _waiting(job: Job) -> list[CollectiveSpec]:
    waiting = _missing(job)
    if len(waiting) < len(job.specs):
        stored = len(job.specs) - len(waiting)
        say(f"stored already: {stored} of {units.counted(len(job.specs), 'measurement')}")
    return waiting


def _launcher(job: Job, machine: Machine) -> HostCollectives:
    end_at_once()
    if launchers := test_launchers():
        launcher: HostCollectives = launchers.collective_launcher()
        return launcher
    from dpbench.launch.collectives import HostCollectives

    return HostCollectives(machine, folder_inside(job.folder, LOGS_FOLDER))


def _missing(job: Job) -> list[CollectiveSpec]:
    """Measurements without a completed record: failed ones are measured again."""
    if not store.holds_collectives(job.folder):
        return list(job.specs)
    done = {
        record.collective.collective_id
        for record in store.load_collectives(job.folder).records
        if record.status in (Status.COMPLETED, Status.SKIPPED)
    }
    return [spec for spec in job.specs if spec.collective_id not in done]


def exit_status(specs: Sequence[CollectiveSpec], records: Sequence[CollectiveRecord]) -> int:
    """1 if one of `specs` failed or none completed, else 0; of what ran twice the last run
    counts."""
    wanted = {spec.collective_id for spec in specs}
    ended = {record.collective.collective_id: record.status for record in records}
    statuses = {status for name, status in ended.items() if name in wanted}
    failed = statuses - {Status.COMPLETED, Status.SKIPPED}
    return 1 if failed or Status.COMPLETED not in statuses else 0
