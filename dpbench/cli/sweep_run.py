"""What `dpbench sweep` does once its options are right: prepare, run, store, report."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dpbench import environment, store, units
from dpbench.cli.interrupts import as_exceptions, end_at_once
from dpbench.cli.plan import show_plan
from dpbench.cli.progress import reporter
from dpbench.cli.report import show_sweep
from dpbench.cli.sweep_options import ParsedOptions, build
from dpbench.data.registry import Prepared, prepare
from dpbench.environment import Environment
from dpbench.errors import DataError, Interrupted, StoreError, UsageError
from dpbench.launch.launcher import Launcher
from dpbench.launch.machine import Machine
from dpbench.records import Status, TrialRecord
from dpbench.specs import SweepSpec, TrialSpec, differing_fields
from dpbench.store import StoredSweep, SweepStore
from dpbench.sweep import plan, run

LOGS_FOLDER = "logs"
"""Where the ranks of failed trials leave what they printed."""
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


def execute(job: Job) -> int:
    """Runs the job and returns its exit status."""
    folder = _folder(job)
    earlier = store.load(folder) if job.resume else None
    machine = _machine(job)
    spec, notes = build(job.options, machine)
    _check_resumable(earlier, spec)
    trials = plan(spec)
    with tempfile.TemporaryDirectory(prefix="dpbench-") as scratch:
        end_at_once(Path(scratch))
        prepared = _prepare_data(job, spec, trials, Path(scratch))
        for note in (*notes, *prepared.notes):
            _say(note)
        logs = Path(scratch) if job.dry_run else folder / LOGS_FOLDER
        launcher = _launcher(job, machine, prepared, logs)
        if job.dry_run:
            return show_plan(trials, spec, launcher, as_json=job.json_rows)
        with _open_store(folder, spec, earlier) as results, as_exceptions():
            _measure(job, spec, trials, launcher, results, machine)
    return _report(job, folder)


def _folder(job: Job) -> Path:
    if job.name is not None:
        store.check_name(job.name)
        folder = job.results_dir / job.name
        if folder.exists() and not (job.resume or job.dry_run):
            raise StoreError(
                f"{folder} exists already; choose another --name, or finish it with --resume"
            )
        return folder
    if job.resume:
        raise UsageError("--resume needs the --name of the sweep to finish")
    time = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return job.results_dir / f"{time}-{job.options.options.arch.replace(':', '-')}"


def _machine(job: Job) -> Machine:
    if job.synthetic:
        return Machine(cores=environment.usable_cores(), gpus=(), cuda=None, missing_backends=())
    from dpbench.launch.machine import inspect_machine

    return inspect_machine()


def _check_resumable(earlier: StoredSweep | None, spec: SweepSpec) -> None:
    if earlier is None:
        return
    for warning in earlier.warnings:
        _say(f"warning: {warning}")
    differences = differing_fields(spec, earlier.spec)
    if differences:
        raise UsageError(
            f"--resume: {earlier.folder} holds another sweep ({'; '.join(differences)}); "
            f"to finish it: {_resume_command(earlier.command, earlier.folder)}"
        )


def _resume_command(command: Sequence[str], folder: Path) -> str:
    """The command that finishes the sweep that `command` started in `folder`."""
    words = [*command]
    if not any(word == "--name" or word.startswith("--name=") for word in words):
        words += ["--name", folder.name]
    if "--resume" not in words:
        words.append("--resume")
    return f"dpbench {shlex.join(words)}"


def _prepare_data(job: Job, spec: SweepSpec, trials: Sequence[TrialSpec], cache: Path) -> Prepared:
    """The dataset in a form that ranks load in milliseconds, large enough for every batch."""
    if job.synthetic:
        return Prepared(folder=None, samples=None)  # no rank will ever load it
    prepared = prepare(spec.workload.dataset, data_dir=job.data_dir, cache=cache)
    largest = max(trial.global_batch_size for trial in trials)
    if prepared.samples is not None and largest > prepared.samples:
        raise DataError(
            f"--batch-sizes: a global batch of {largest} is more than the "
            f"{prepared.samples} samples of {spec.workload.dataset}; "
            "take a smaller batch, or --data synthetic"
        )
    return prepared


def _launcher(job: Job, machine: Machine, prepared: Prepared, logs: Path) -> Launcher:
    if job.synthetic:
        from dpbench.launch.synthetic import SyntheticLauncher

        return SyntheticLauncher()
    from dpbench.launch.agent import ElasticLauncher

    return ElasticLauncher(machine, prepared.folder, logs=logs)


def _open_store(folder: Path, spec: SweepSpec, earlier: StoredSweep | None) -> SweepStore:
    if earlier is not None:
        return SweepStore.append_to(folder)
    return SweepStore.create(folder, spec, sys.argv[1:])


def _measure(
    job: Job,
    spec: SweepSpec,
    trials: Sequence[TrialSpec],
    launcher: Launcher,
    results: SweepStore,
    machine: Machine,
) -> None:
    here = _environment(job, machine)
    results.add_environment(here)
    done = {record.trial.trial_id for record in store.load(results.folder).records}
    waiting = [trial for trial in trials if trial.trial_id not in done]
    stored = len(trials) - len(waiting)
    if stored:
        _say(f"resuming: {stored} of {units.counted(len(trials), 'trial')} are stored")
    try:
        with reporter(waiting, quiet=job.quiet) as progress:
            for record in run(
                waiting,
                launcher,
                environment_id=here.environment_id,
                time_limit_seconds=spec.time_limit_seconds,
                on_start=progress.started,
            ):
                results.append(record)
                stored += 1
                progress.finished(record)
    except (KeyboardInterrupt, Interrupted) as error:
        number = getattr(error, "signal_number", signal.SIGINT)
        raise Interrupted(
            number,
            f"interrupted: {stored} of {units.counted(len(trials), 'trial')} are stored in "
            f"{results.folder}; to finish: {_resume_command(sys.argv[1:], results.folder)}",
        ) from None


def _environment(job: Job, machine: Machine) -> Environment:
    launcher = environment.SYNTHETIC if job.synthetic else environment.ELASTIC
    return environment.capture(accelerators=machine.gpus, cuda=machine.cuda, launcher=launcher)


def _report(job: Job, folder: Path) -> int:
    """Prints the table, writes tables and charts, and returns the exit status of the sweep."""
    stored = store.load(folder)
    show_sweep(stored, format="json" if job.json_rows else None)
    _say(f"records are in {folder}")
    return exit_status(stored.records)


def exit_status(records: Sequence[TrialRecord]) -> int:
    """6 for wrong gradients before 1 for a failure; 1 as well if nothing completed."""
    from dpbench.analysis.outcome import effective_status

    statuses = Counter(effective_status(record) for record in records)
    if statuses[Status.WRONG_GRADIENTS]:
        return 6
    if any(statuses[status] for status in FAILURES) or not statuses[Status.COMPLETED]:
        return 1
    return 0


def _say(message: str) -> None:
    print(f"dpbench: {message}", file=sys.stderr)
