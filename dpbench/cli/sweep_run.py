"""What `dpbench sweep` does once its options are right: run, store, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dpbench.cli.measuring import launcher_for
from dpbench.cli.messages import say
from dpbench.cli.plan import show_plan
from dpbench.cli.shown import show_sweep
from dpbench.cli.sweep_preparation import PreparedSweep, SweepRequest, find_place, prepare
from dpbench.grid import plan
from dpbench.records import Status, TrialRecord
from dpbench.store import StoredSweep
from dpbench.temporary import temporary_folder

FAILURES = (Status.FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.DIVERGED)


def execute(request: SweepRequest) -> int:
    """Runs the sweep and returns its exit status."""
    prepared = prepare(request, find_place(request, may_exist=request.options.dry_run))
    if request.options.dry_run:
        return show_planned(request, prepared)
    return report(request, prepared.measure())


def show_planned(request: SweepRequest, prepared: PreparedSweep) -> int:
    """Prints what would be measured."""
    spec = prepared.measurement.spec
    with (
        temporary_folder() as logs,
        launcher_for(prepared.measurement, prepared.machine, logs) as launcher,
    ):
        return show_plan(plan(spec), spec, launcher, as_json=request.options.json_rows)


def report(request: SweepRequest, stored: StoredSweep) -> int:
    """Prints the table, writes tables and charts, and returns the exit status of the sweep."""
    show_sweep(
        stored, format="json" if request.options.json_rows else None, charts=request.options.charts
    )
    say(f"records are in {stored.folder}")
    return exit_status(stored.records)


def exit_status(records: Sequence[TrialRecord]) -> int:
    """6 for wrong gradients before 1 for a failure, or for trials that a lost node left over; 1 as
    well if nothing completed."""
    from dpbench.analysis.outcome import effective_status
    from dpbench.analysis.repetitions import by_configuration

    counted = [record for group in by_configuration(records).values() for record in group]
    statuses = Counter(effective_status(record) for record in counted)
    if statuses[Status.WRONG_GRADIENTS]:
        return 6
    failed = any(statuses[status] for status in FAILURES)
    left_over = any(record.lost_host is not None for record in counted)
    return 1 if failed or left_over or not statuses[Status.COMPLETED] else 0
