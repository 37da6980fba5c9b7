"""Measures the planned collectives and stores their records."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench import store, units
from dpbench.errors import Interrupted, UsageError
from dpbench.files import folder_inside
from dpbench.launch.machine import Machine
from dpbench.messages import say
from dpbench.records.collectives import CollectiveRecord, CollectiveSpec
from dpbench.records.trial import Status
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
    """Raises UsageError if none of it can run here, and Interrupted, with what was stored, when a
    signal ends it."""
    from dpbench.launch.collectives import run_collectives

    environment = environment_here(machine)
    launcher = _launcher(job, machine)
    unusable = _unusable(job.specs, launcher)
    for why in dict.fromkeys(unusable.values()):
        groups = (f"{s.backend} ×{s.group_size}" for s, reason in unusable.items() if reason == why)
        say(f"skipped: {', '.join(dict.fromkeys(groups))}: {why}")
    with (
        CollectiveStore.create(job.folder, job.command) as results,
        as_exceptions(),
    ):
        results.add_environment(environment)
        try:
            with Reporter(quiet=job.quiet, noun="measurement") as progress:
                run = partial(
                    run_collectives,
                    launcher=launcher,
                    environment_id=environment.environment_id,
                    time_limit_seconds=job.time_limit_seconds,
                )
                for record in run(spec for spec in job.specs if spec.configuration in unusable):
                    results.append(record)
                usable = [spec for spec in job.specs if spec.configuration not in unusable]
                progress.planned(usable)
                for record in run(usable, on_start=progress.started):
                    results.append(record)
                    progress.finished(record)
        except (KeyboardInterrupt, Interrupted) as error:
            number = getattr(error, "signal_number", signal.SIGINT)
            done = len(store.load_collectives(job.folder).records)
            raise Interrupted(
                number,
                f"interrupted; stored in {job.folder}: {done} of "
                f"{units.counted(len(job.specs), 'measurement')}",
            ) from None
    return store.load_collectives(job.folder)


def _unusable(
    specs: Sequence[CollectiveSpec], launcher: HostCollectives
) -> dict[CollectiveSpec, str]:
    """The configurations that this machine cannot run, each with the reason. Raises UsageError if
    there are no others."""
    configurations = dict.fromkeys(spec.configuration for spec in specs)
    reasons = {one: launcher.unusable_reason(one) for one in configurations}
    found = {one: reason for one, reason in reasons.items() if reason}
    if len(found) == len(configurations):
        backends = ",".join(dict.fromkeys(spec.backend for spec in found))
        raise UsageError(f"--backends {backends}: {'; '.join(dict.fromkeys(found.values()))}")
    return found


def _launcher(job: Job, machine: Machine) -> HostCollectives:
    end_at_once()
    if launchers := test_launchers():
        launcher: HostCollectives = launchers.collective_launcher()
        return launcher
    from dpbench.launch.collectives import HostCollectives

    return HostCollectives(machine, folder_inside(job.folder, LOGS_FOLDER))


def exit_status(records: Sequence[CollectiveRecord]) -> int:
    """1 if a measurement failed or none completed, else 0."""
    statuses = {record.status for record in records}
    failed = statuses - {Status.COMPLETED, Status.SKIPPED}
    return 1 if failed or Status.COMPLETED not in statuses else 0
