"""What `dpbench sweep` does once its options are right: prepare, run, store, report."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbench import store, units
from dpbench.cli.measuring import (
    Measurement,
    Rounds,
    all_trials,
    launcher_for,
    machine_for,
    measure,
    results_folder,
)
from dpbench.cli.messages import say, warn
from dpbench.cli.plan import show_plan
from dpbench.cli.report import show_sweep
from dpbench.cli.rounds import UntilSettled
from dpbench.cli.sweep_options import ParsedOptions
from dpbench.cli.sweep_spec import build
from dpbench.errors import StoreError, UsageError
from dpbench.grid import plan
from dpbench.launch.machine import Machine
from dpbench.records import Status, TrialRecord
from dpbench.specs import SweepSpec, differing_fields
from dpbench.store import StoredSweep

FAILURES = (Status.FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.DIVERGED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One invocation of `dpbench sweep`."""

    options: ParsedOptions
    name: str | None
    results_dir: Path
    data_dir: Path | None
    resume: bool
    dry_run: bool
    json_rows: bool
    quiet: bool
    synthetic: bool
    stop_after_failure: bool


def execute(job: Job) -> int:
    """Runs the job and returns its exit status."""
    folder = _folder(job)
    earlier = store.load(folder) if job.resume else None
    machine = machine_for(synthetic=job.synthetic)
    spec, notes = build(job.options, machine)
    _check_resumable(earlier, spec)
    for note in notes:
        say(note)
    measurement = Measurement(
        spec=spec,
        folder=folder,
        command=sys.argv[1:],
        data_dir=job.data_dir,
        quiet=job.quiet,
        synthetic=job.synthetic,
        resumed=job.resume,
        stop_after_failure=job.stop_after_failure,
        to_finish=_resume_command(sys.argv[1:], folder),
    )
    if job.dry_run:
        return _dry_run(job, measurement, machine)
    if earlier is not None:
        _tell_what_is_stored(spec, earlier)
    return _report(job, measure(measurement, machine, _rounds(spec, earlier)))


def _dry_run(job: Job, measurement: Measurement, machine: Machine) -> int:
    spec = measurement.spec
    with (
        tempfile.TemporaryDirectory(prefix="dpbench-") as logs,
        launcher_for(measurement, machine, Path(logs)) as launcher,
    ):
        return show_plan(plan(spec), spec, launcher, as_json=job.json_rows)


def _rounds(spec: SweepSpec, earlier: StoredSweep | None) -> Rounds:
    if spec.precision is None or spec.budget_seconds is None:
        return all_trials(spec)
    from dpbench.analysis.precision import too_wide

    precision = spec.precision
    return UntilSettled(
        spec,
        lambda records: too_wide(records, precision),
        budget_seconds=spec.budget_seconds,
        say=say,
        spent_seconds=sum(record.duration_seconds for record in earlier.records) if earlier else 0,
    )


def _folder(job: Job) -> Path:
    if job.resume and job.name is None:
        raise UsageError("--resume needs the --name of the sweep to finish")
    arch = job.options.options.arch.replace(":", "-")
    folder = results_folder(job.results_dir, job.name, otherwise=arch)
    if folder.exists() and not (job.resume or job.dry_run):
        raise StoreError(
            f"{folder} exists already; choose another --name, or finish it with --resume"
        )
    return folder


def _check_resumable(earlier: StoredSweep | None, spec: SweepSpec) -> None:
    if earlier is None:
        return
    warn(*earlier.warnings)
    differences = differing_fields(spec, earlier.spec)
    if differences:
        raise UsageError(
            f"--resume: {earlier.folder} holds another sweep ({'; '.join(differences)}); "
            f"to finish it: {_resume_command(earlier.command, earlier.folder)}"
        )


def _tell_what_is_stored(spec: SweepSpec, earlier: StoredSweep) -> None:
    stored = len({record.trial.trial_id for record in earlier.records})
    if not stored:
        return
    if spec.precision is not None:  # nothing tells how many trials there will be
        say(f"resuming with {units.counted(stored, 'stored trial')}")
    else:
        say(f"resuming: {stored} of {units.counted(len(plan(spec)), 'trial')} are stored")


def _resume_command(command: Sequence[str], folder: Path) -> str:
    """The command that finishes the sweep that `command` started in `folder`."""
    words = [*command]
    if not any(word == "--name" or word.startswith("--name=") for word in words):
        words += ["--name", folder.name]
    if "--resume" not in words:
        words.append("--resume")
    return f"dpbench {shlex.join(words)}"


def _report(job: Job, stored: StoredSweep) -> int:
    """Prints the table, writes tables and charts, and returns the exit status of the sweep."""
    show_sweep(stored, format="json" if job.json_rows else None)
    say(f"records are in {stored.folder}")
    return exit_status(stored.records)


def exit_status(records: Sequence[TrialRecord]) -> int:
    """6 for wrong gradients before 1 for a failure; 1 as well if nothing completed."""
    from dpbench.analysis.outcome import effective_status
    from dpbench.analysis.repetitions import by_configuration

    counted = (record for group in by_configuration(records).values() for record in group)
    statuses = Counter(effective_status(record) for record in counted)
    if statuses[Status.WRONG_GRADIENTS]:
        return 6
    if any(statuses[status] for status in FAILURES) or not statuses[Status.COMPLETED]:
        return 1
    return 0
