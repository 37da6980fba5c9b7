"""Measures collectives and stores their records."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial

from dpbench import store, units
from dpbench.errors import Interrupted, UsageError
from dpbench.files import folder_inside
from dpbench.launch.collectives import HostCollectives, run_collectives
from dpbench.options.comm import CommOptions
from dpbench.records.collectives import CollectiveRecord, CollectiveSpec
from dpbench.records.trial import Status
from dpbench.report.progress.trials import Reporter
from dpbench.run.collectives.plan import build_collective_specs
from dpbench.run.interrupts import as_exceptions
from dpbench.run.results import results_folder
from dpbench.run.this_machine import environment_here, machine_here, test_launchers
from dpbench.store import LOGS_FOLDER, CollectiveStore, StoredCollectives


def measure_collectives(options: CommOptions, progress: Reporter) -> StoredCollectives:
    """Raises UsageError if none of it can run here, and Interrupted, with what was stored, when a
    signal ends it."""
    folder = results_folder(options.results_dir, options.name, otherwise="collectives")
    store.require_free(folder)
    machine = machine_here()
    specs, notes = build_collective_specs(options, machine)
    if launchers := test_launchers():
        launcher: HostCollectives = launchers.collective_launcher()
    else:
        launcher = HostCollectives(machine, folder_inside(folder, LOGS_FOLDER))
    unusable = _unusable(specs, launcher)
    for why in dict.fromkeys(unusable.values()):
        groups = (f"{s.backend} ×{s.group_size}" for s, reason in unusable.items() if reason == why)
        notes.append(f"skipped: {', '.join(dict.fromkeys(groups))}: {why}")
    for note in notes:
        progress.note(note)
    environment = environment_here(machine)
    run = partial(
        run_collectives,
        launcher=launcher,
        environment_id=environment.environment_id,
        time_limit_seconds=options.time_limit,
    )
    opened = CollectiveStore.create(folder, ["comm", *options.words()])
    with opened as results, as_exceptions(), progress:
        results.add_environment(environment)
        done = 0
        try:
            for record in run(spec for spec in specs if spec.configuration in unusable):
                results.append(record)
                done += 1
            usable = [spec for spec in specs if spec.configuration not in unusable]
            progress.planned(usable)
            for record in run(usable, on_start=progress.started):
                results.append(record)
                done += 1
                progress.finished(record)
        except (KeyboardInterrupt, Interrupted) as error:
            number = getattr(error, "signal_number", signal.SIGINT)
            total = units.counted(len(specs), "measurement")
            stored = f"interrupted; stored in {folder}: {done} of {total}"
            raise Interrupted(number, stored) from None
    return store.load_collectives(folder)


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


def exit_status(records: Sequence[CollectiveRecord]) -> int:
    """1 if a measurement failed or none completed, else 0."""
    statuses = {record.status for record in records}
    failed = statuses - {Status.COMPLETED, Status.SKIPPED}
    return 1 if failed or Status.COMPLETED not in statuses else 0
