"""Measuring a sweep into its results folder: what `sweep`, `check` and `explain` share."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from dpbench import store, units
from dpbench.analysis.repetitions import by_configuration
from dpbench.data.registry import PreparedData, is_function, prepare_dataset
from dpbench.data.user_code import files_sha256, named_files
from dpbench.errors import DataError, Interrupted, UsageError
from dpbench.files import folder_inside
from dpbench.launch.launcher import Launcher
from dpbench.launch.preflight import in_rank
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status, TrialRecord
from dpbench.report.progress.trials import Reporter
from dpbench.run.interrupts import as_exceptions
from dpbench.run.sweep.grid import Rounds, missing, plan_hash, run_trials, trial_number
from dpbench.run.sweep.job import Job, find_folder, lasting, prepare
from dpbench.run.this_machine import environment_here, test_launchers
from dpbench.specs import Labels, TrialSpec
from dpbench.specs.traits import BACKENDS
from dpbench.store import LOGS_FOLDER, StoredSweep, SweepStore
from dpbench.temporary import temporary_folder

FAILURES = (Status.FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.DIVERGED)
"""Statuses with which a sweep ends with exit status 1."""


def measure_sweep(options: SweepOptions, progress: Reporter) -> StoredSweep:
    """Run the sweep on this node; raises what `prepare` and `measure` do."""
    return measure(prepare(options, *find_folder(options), progress.note), progress)


def measure(job: Job, progress: Reporter, rounds: Rounds | None = None) -> StoredSweep:
    """Run the trials of the plan that are not stored yet, and store each record as it comes.

    `rounds` asks for other trials, round by round. Raises UsageError if none of the backends can be
    used, and Interrupted, whose message says what is stored, if a signal ends the sweep.
    """
    team = job.team
    rounds = rounds or partial(missing, job.trials)
    with launcher_for(job) as launcher:
        unusable = unusable_rows(job.trials, launcher)
        for note in job.notes:
            progress.note(note)
        environment = team.nodes[0].environment if team else environment_here(job.machine)
        records = lasting(job.earlier.records, unusable) if job.earlier else []
        waiting: Sequence[TrialSpec] = ()
        names = Labels.among(trial.configuration for trial in job.trials)

        def usable(trials: Sequence[TrialSpec]) -> list[TrialSpec]:
            return [trial for trial in trials if trial.configuration not in unusable]

        def stored_words() -> str:
            done = [record for record in records if record.lost_host is None]
            count = len(usable([record.trial for record in done]))
            total = units.counted(count + len(missing(usable(waiting), done)), "trial")
            return f"{count} of {total} are stored in {job.folder}"

        def start(trial: TrialSpec) -> None:
            _require_same_code(job, stored_words)
            progress.started(trial)

        opened = (
            SweepStore(job.folder)
            if job.earlier
            else SweepStore.create(job.folder, job.spec, job.command)
        )
        with opened as results, as_exceptions(), progress:
            for one in [node.environment for node in team.nodes] if team else [environment]:
                results.add_environment(one)
            try:
                for note in _skipped(unusable):
                    progress.note(note)
                if resumed := len(usable([record.trial for record in records])):
                    progress.note(f"resuming: {units.stored(resumed, len(usable(job.trials)))}")
                while waiting := rounds(tuple(records)):
                    progress.planned(usable(waiting), names.configuration)
                    # Rows that cannot run are stored before the others take minutes.
                    ordered = sorted(waiting, key=lambda one: one.configuration not in unusable)
                    for record in run_trials(
                        ordered,
                        launcher,
                        environment_id=environment.environment_id,
                        time_limit_seconds=job.spec.time_limit_seconds,
                        earlier=records,
                        stop_after_failure=job.stop_after_failure,
                        on_start=start,
                        complete=partial(_with_hosts, job),
                    ):
                        results.append(record)
                        records.append(record)
                        if record.trial.configuration not in unusable:
                            progress.finished(record)
            except (KeyboardInterrupt, Interrupted) as error:
                number = getattr(error, "signal_number", signal.SIGINT)
                rest = f"; to finish: {job.to_finish}" if job.to_finish else ""
                raise Interrupted(number, f"interrupted: {stored_words()}{rest}") from None
    return store.load(job.folder)


def unusable_rows(trials: Sequence[TrialSpec], launcher: Launcher) -> dict[TrialSpec, str]:
    """The configurations that this machine cannot run, each with the reason. Raises UsageError if
    none of those with a process group can run."""
    configurations = dict.fromkeys(trial.configuration for trial in trials)
    reasons = {one: launcher.unusable_reason(one) for one in configurations}
    found = {one: reason for one, reason in reasons.items() if reason}
    with_backend = [one for one in configurations if BACKENDS[one.backend].process_group]
    if with_backend and all(one in found for one in with_backend):
        backends = dict.fromkeys(one.backend for one in with_backend)
        words = dict.fromkeys(found[one] for one in with_backend)
        raise UsageError(
            f"--backends {','.join(backends)}: {'; '.join(words)} (dpbench list names the "
            "backends that can be used)",
            about=("backends",),
        )
    return found


def _skipped(unusable: Mapping[TrialSpec, str]) -> Iterator[str]:
    """A line for each reason, with the rows that it concerns."""
    for reason in dict.fromkeys(unusable.values()):
        rows = [one for one, why in unusable.items() if why == reason]
        series = dict.fromkeys(f"{one.implementation}/{one.backend}" for one in rows)
        yield f"skipped: {', '.join(series)}: {reason} ({units.counted(len(rows), 'row')})"


def _require_same_code(job: Job, stored_words: Callable[[], str]) -> None:
    """Raise UsageError if the user's code has changed, since every trial loads it again."""
    for workload in job.spec.workloads:
        if files_sha256(workload) != workload.files_sha256:
            finish = job.to_finish
            back = f"put the old one back and finish with: {finish}"
            raise UsageError(
                f"{named_files(workload)} has changed while the sweep ran, and what is left would "
                f"measure something else; {stored_words()}; "
                f"{back if finish else 'measure it again'}"
            )


def _with_hosts(job: Job, record: TrialRecord) -> TrialRecord:
    """The record with the hosts that it needed, and the one whose loss is its reason."""
    team = job.team
    if team is None or not record.trial.nodes:
        return record
    hosts = team.nodes[: len(record.trial.nodes)]
    reason = record.reason
    lost = (n.number for n in hosts if reason and reason == team.lost_reason(n.number))
    return replace(
        record,
        host_environment_ids=tuple(node.environment.environment_id for node in hosts),
        lost_host=next(lost, None),
    )


@contextmanager
def launcher_for(job: Job, logs: Path | None = None) -> Iterator[Launcher]:
    """A launcher with its datasets prepared; the logs of failed trials go into the job's folder,
    unless `logs` is another one."""
    if launchers := test_launchers():
        yield launchers.trial_launcher()
        return
    from dpbench.launch.trials import HostLauncher

    with temporary_folder() as scratch:
        logs = logs or folder_inside(job.folder, LOGS_FOLDER)
        here = HostLauncher(job.machine, _prepared(job, scratch), logs)
        if job.team is None:
            yield here
            return
        from dpbench.launch.nodes import NodesLauncher

        job.team.agree(plan_hash(job.spec))
        yield NodesLauncher(job.team, here, partial(trial_number, job.spec))


def _prepared(job: Job, cache: Path) -> dict[str, Path | None]:
    """The folder of each architecture's dataset, in a form that ranks load in milliseconds.

    Raises DataError for a dataset that is smaller than a batch.
    """
    known: dict[str, PreparedData] = {}
    folders: dict[str, Path | None] = {}
    for workload in () if job.spec.workload.script else job.spec.workloads:
        named, dataset = workload.architecture, workload.dataset
        if dataset not in known:
            work = partial(prepare_dataset, dataset, data_dir=job.data_dir, cache=cache)
            theirs = is_function(dataset)
            known[dataset] = in_rank(f"dataset {dataset!r}", work) if theirs else work()
        prepared = known[dataset]
        largest, replicas = max(
            (
                (trial.global_batch_size, trial.group_size)
                for trial in job.trials
                if trial.workload.architecture == named
            ),
            default=(0, 0),
        )
        if prepared.samples is not None and largest > prepared.samples:
            raise DataError(
                f"--batch-sizes: a global batch of {largest} for "
                f"{units.counted(replicas, 'replica')} is more than the {prepared.samples} samples "
                f"of {dataset}; use smaller batches, fewer --gpus, or --data synthetic"
            )
        folders[named] = prepared.folder
    return folders


def exit_status(records: Sequence[TrialRecord], asked: Collection[str] | None = None) -> int:
    """6 for wrong gradients before 1 for a failure, or for trials that a lost node left over.

    It is 1 as well if nothing completed of the implementations that were `asked` for: the baseline
    alone, which every sweep measures, is no answer.
    """
    counted = [record for group in by_configuration(records).values() for record in group]
    statuses = Counter(record.status for record in counted)
    if statuses[Status.WRONG_GRADIENTS]:
        return 6
    failed = any(statuses[status] for status in FAILURES)
    left_over = any(record.lost_host is not None for record in counted)
    answered = any(
        record.status is Status.COMPLETED
        and (asked is None or record.trial.implementation in asked)
        for record in counted
    )
    return 1 if failed or left_over or not answered else 0
