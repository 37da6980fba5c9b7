"""Measuring a sweep into its results folder: what `sweep`, `check` and `explain` share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from dpbench import store, units
from dpbench.analysis.noise import load_warning
from dpbench.analysis.repetitions import by_configuration
from dpbench.codec import content_hash
from dpbench.data.registry import is_function, prepare_dataset
from dpbench.data.user_code import files_sha256, named_files
from dpbench.errors import DataError, UsageError
from dpbench.files import folder_inside
from dpbench.launch.cluster import ClusterLauncher, follow_orders
from dpbench.launch.launcher import Launcher
from dpbench.launch.outcome import attempt
from dpbench.launch.preflight import run_user_code
from dpbench.messages import option_words
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Outcome, RankMeasurement, Status, TrialRecord
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.interrupts import interruptible
from dpbench.run.sweep.job import Job, planned
from dpbench.run.this_machine import test_launchers
from dpbench.specs import Configuration, Labels, TrialSpec, plain_label
from dpbench.specs.sweep import plan_trials
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS
from dpbench.store import LOGS_FOLDER, ResultsStore, StoredSweep
from dpbench.store.unfinished import missing
from dpbench.temporary import temporary_folder

FAILURES = (Status.FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.DIVERGED)
"""Statuses with which a sweep ends with exit status 1."""


def measure_sweep(options: SweepOptions, progress: TrialProgress) -> StoredSweep:
    """Run the sweep on this machine; raises what `planned` and `measure` do."""
    with planned(options) as job:
        return measure(job, progress)


def measure(
    job: Job, progress: TrialProgress, repetitions: Iterable[int] | None = None
) -> StoredSweep:
    """Run the trials of the plan that are not stored yet, and store each record as it comes.

    `repetitions` are numbers to reach one after the other, in place of the plan's own.
    Raises UsageError if none of the backends can be used, and Interrupted, whose message says what
    is stored, if a signal ends the sweep.
    """
    with launcher_for(job) as launcher:
        unusable = unusable_configurations(job.trials, launcher)
        busy = load_warning(launcher.load, job.trials[0])
        progress.note(*job.notes, *_skipped(unusable), *busy)
        names = Labels.among(job.trials)
        records = lasting(job.earlier.records, unusable) if job.earlier else []
        wanted = [*job.trials]

        def stored_words() -> str:
            return units.stored(len(wanted) - len(missing(wanted, records)), len(wanted))

        def interrupted_words() -> str:
            rest = f"; to finish: {job.to_finish}" if job.to_finish else ""
            return f"{stored_words()} in {job.folder}{rest}"

        opened = (
            ResultsStore(job.folder)
            if job.earlier
            else ResultsStore.create(job.folder, job.command, job.spec)
        )
        with opened as results, interruptible(interrupted_words), progress:
            for node in job.nodes:
                results.add_environment(node.environment)
            for count in repetitions or (job.spec.repetitions,):
                every = plan_trials(job.spec, count)
                wanted = [one for one in every if one.configuration not in unusable]
                left = missing(every, records)
                waiting = [one for one in left if one.configuration not in unusable]
                if job.earlier and len(waiting) < len(wanted):
                    progress.note(f"resuming: {stored_words()}")
                progress.planned(waiting, names.label)
                # Trials that cannot run are stored before the others take minutes.
                idle = [one for one in left if one.configuration in unusable]
                for trial in (*idle, *waiting):
                    _require_same_code(job, stored_words)
                    progress.started(trial)
                    record = run_trial(
                        trial,
                        launcher,
                        records,
                        environment_ids=[node.environment.environment_id for node in job.nodes],
                        time_limit_seconds=job.spec.time_limit_seconds,
                        largest_group=max(job.spec.group_sizes),
                        stop_after_failure=job.stop_after_failure,
                    )
                    results.append(record)
                    records.append(record)
                    if trial.configuration not in unusable:
                        progress.finished(record)
    return store.load_sweep(job.folder)


def follow(job: Job, progress: TrialProgress) -> None:
    """Run this node's ranks of the trials that node 0 orders, until it has no more. Raises
    NodeLost."""
    cluster = job.cluster
    assert cluster is not None, "only a node follows"
    progress.note(*job.notes)
    try:
        with launcher_for(job) as here:
            follow_orders(cluster, here, job.trials, job.spec.time_limit_seconds)
    finally:
        with suppress(OSError):  # it stays if something was left in it
            job.folder.rmdir()


def run_trial(
    trial: TrialSpec,
    launcher: Launcher,
    earlier: Sequence[TrialRecord],
    *,
    environment_ids: Sequence[str],
    time_limit_seconds: float,
    largest_group: int,
    stop_after_failure: bool = False,
) -> TrialRecord:
    """Run a trial, once more if something outside killed it.

    `environment_ids` are those of the hosts, `earlier` are the records of the sweep so far. With
    `stop_after_failure`, once a configuration has failed, its further repetitions and the same in
    larger groups are skipped with that reason. A training script that has failed is not run again
    in the same way, and after a failure in the largest group not at all with the same arguments.
    """

    def run() -> Outcome[RankMeasurement]:
        reason = _failed_before(trial, earlier, largest_group, stops=stop_after_failure)
        if reason := reason or launcher.unusable_reason(trial):
            return Outcome(status=Status.SKIPPED, reason=reason)
        return launcher.run(_with_chosen_steps(trial, earlier), time_limit_seconds)

    outcome, timing = attempt(plain_label(trial), run)
    return TrialRecord(
        trial=trial,
        environment_ids=tuple(environment_ids[: trial.node_count]),
        timing=timing,
        **outcome.fields(),
    )


def _failed_before(
    trial: TrialSpec, records: Iterable[TrialRecord], largest: int, *, stops: bool
) -> str | None:
    """Why `trial` is not worth running: its script has failed in the same way, or in the `largest`
    group (on one rank alone some cannot run); or, with `stops`, because the same has failed with as
    many replicas or fewer."""
    for record in records:
        failed = record.trial
        if record.status in (Status.COMPLETED, Status.SKIPPED):
            continue
        if trial.script_command and trial.script_command == failed.script_command:
            whole = IMPLEMENTATIONS[failed.implementation].communicates
            again = whole and failed.group_size == largest
            again = again or failed.configuration == trial.configuration
        else:
            alone = trial.configuration.of_one_replica
            again = stops and failed.configuration.of_one_replica == alone
            again = again and failed.group_size <= trial.group_size
        if again:
            return f"{plain_label(failed)} failed"
    return None


def _with_chosen_steps(trial: TrialSpec, records: Iterable[TrialRecord]) -> TrialSpec:
    """The trial with the timed steps that an earlier repetition chose to fill its window, so that
    all of a configuration train on the same samples."""
    if trial.window_seconds is not None:
        for record in records:
            if record.ranks and record.trial.configuration == trial.configuration:
                steps = record.ranks[0].timed_steps
                return replace(trial, window_seconds=None, timed_steps=steps)
    return trial


def lasting(
    records: Sequence[TrialRecord], unusable: Container[Configuration] = ()
) -> list[TrialRecord]:
    """The records that a resumed sweep keeps: the last one of each trial that has completed, or
    whose configuration cannot run here."""
    last = {record.trial.trial_id: record for record in records}
    return [
        record
        for record in last.values()
        if record.status is Status.COMPLETED or record.trial.configuration in unusable
    ]


def unusable_configurations(
    trials: Sequence[TrialSpec], launcher: Launcher
) -> dict[Configuration, str]:
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
            f"{option_words('backends', tuple(backends))}: {'; '.join(words)} (dpbench list names "
            "the backends that can be used)",
            about=("backends",),
        )
    return found


def _skipped(unusable: Mapping[Configuration, str]) -> Iterator[str]:
    """A line for each reason, with the series that it concerns."""
    for reason in dict.fromkeys(unusable.values()):
        found = [one for one, why in unusable.items() if why == reason]
        series = dict.fromkeys(f"{one.implementation}/{one.backend}" for one in found)
        yield f"skipped: {', '.join(series)}: {reason} ({units.counted(len(found), 'row')})"


def _require_same_code(job: Job, stored_words: Callable[[], str]) -> None:
    """Raise UsageError if the user's code has changed, since every trial loads it again."""
    for workload in job.spec.workloads:
        if files_sha256(workload) != workload.files_sha256:
            finish = job.to_finish
            back = f"put the old one back and finish with: {finish}"
            raise UsageError(
                f"{named_files(workload)} has changed while the sweep ran, and what is left would "
                f"measure something else; {stored_words()} in {job.folder}; "
                f"{back if finish else 'measure it again'}"
            )


@contextmanager
def launcher_for(job: Job, logs: Path | None = None) -> Iterator[Launcher]:
    """A launcher with its datasets prepared; the logs of failed trials go into the job's folder,
    unless `logs` is another one."""
    if launchers := test_launchers():
        yield launchers.trial_launcher()
        return
    with temporary_folder() as scratch:
        logs = logs or folder_inside(job.folder, LOGS_FOLDER)
        _prepare_datasets(job, scratch)
        if job.cluster is None or job.here.number:
            launcher = Launcher(job.here.machine, logs, scratch)
        else:
            launcher = ClusterLauncher(job.cluster, job.trials, logs, scratch)
        if job.cluster is not None:
            job.cluster.agree(content_hash([trial.trial_id for trial in job.trials]))
        yield launcher


def _prepare_datasets(job: Job, cache: Path) -> None:
    """Write the datasets in a form that ranks load in milliseconds.

    Raises DataError for a dataset that is smaller than a step of all replicas.
    """
    counts: dict[str, int | None] = {}
    datasets = dict.fromkeys(one.dataset for one in job.spec.workloads if not one.script)
    for dataset in datasets:
        work = partial(prepare_dataset, dataset, data_dir=job.data_dir, cache=cache)
        theirs = is_function(dataset)
        counts[dataset] = run_user_code(f"dataset {dataset!r}", work) if theirs else work()
    for trial in job.trials if datasets else ():
        samples = counts[trial.workload.dataset]
        if samples is not None and trial.global_batch_size > samples:
            raise DataError(
                f"{units.counted(trial.group_size, 'replica')} take {trial.global_batch_size:,} "
                f"samples in one step, and {trial.workload.dataset} has {samples:,}; expected "
                f"fewer {option_words('gpus')}, smaller {option_words('batch_sizes')} or "
                f"{option_words('data', 'synthetic')}"
            )


def exit_status(records: Sequence[TrialRecord], asked: Collection[str] | None = None) -> int:
    """6 for wrong gradients before 1 for a failure.

    It is 1 as well if nothing completed of the implementations that were `asked` for: the baseline
    alone, which every sweep measures, is no answer.
    """
    counted = [record for group in by_configuration(records).values() for record in group]
    statuses = Counter(record.status for record in counted)
    if statuses[Status.WRONG_GRADIENTS]:
        return 6
    failed = any(statuses[status] for status in FAILURES)
    answered = any(
        record.status is Status.COMPLETED
        and (asked is None or record.trial.implementation in asked)
        for record in counted
    )
    return 1 if failed or not answered else 0
