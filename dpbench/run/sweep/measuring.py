"""Measuring a sweep into its results folder: what `sweep`, `check` and `explain` share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dpbench import folders, units
from dpbench.analysis.noise import load_warning
from dpbench.analysis.rows import by_configuration
from dpbench.architecture.naming import named_files, with_files
from dpbench.errors import FAILED, PASSED, WRONG_GRADIENTS, UsageError
from dpbench.folders import ResultsFolder, Sweep, missing_trials
from dpbench.launch.trial_runner import TrialRunner, recorded
from dpbench.messages import say, warn
from dpbench.records.trial import Status, TrialRecord
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.interrupts import interruptible
from dpbench.run.sweep.plan import SweepPlan
from dpbench.specs import Configuration, Labels, SweepSpec, TrialSpec, plain_label
from dpbench.specs.sweep import configurations, plan_trials
from dpbench.specs.traits import BACKENDS

FAILED_STATUSES = (Status.FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.DIVERGED)
"""Statuses with which a sweep ends with exit status 1."""


def measure(
    plan: SweepPlan, progress: TrialProgress, repetitions: Iterable[int] | None = None
) -> Sweep:
    """Run the trials of a sweep that are not stored yet, and store each record as it comes, in a
    new folder or, if it is resumed, in the one that it has.

    `repetitions` are numbers to reach one after the other, in place of the sweep's own.
    Raises UsageError if none of the backends can be used, or the user's code changes meanwhile, and
    Interrupted, whose message says what is stored, if a signal ends the sweep.
    """
    sweep, runner = plan.sweep, plan.runner
    trials, planned = plan_trials(sweep.spec), configurations(sweep.spec)
    unusable = unusable_configurations(planned, runner)
    records = kept_records(sweep.records, unusable)
    busy = load_warning(runner.load, planned[0])
    warn(*sweep.warnings)
    say(*plan.notes, *_skip_lines(unusable), *busy)
    label = Labels.among(planned).label

    def stored_words() -> str:
        left = missing_trials(trials, records)
        return f"{units.stored(len(trials) - len(left), len(trials))} in {sweep.folder}"

    def interrupted_words() -> str:
        return f"{stored_words()}{f'; to finish: {sweep.to_finish}' if sweep.to_finish else ''}"

    opened = (
        ResultsFolder(sweep.folder)
        if plan.resumes
        else ResultsFolder.create(sweep.folder, sweep.command, sweep.spec)
    )
    with opened as results, interruptible(interrupted_words), progress:
        for machine in runner.machines:
            results.add_environment(machine.environment)
        if plan.resumes:
            say(f"resuming: {stored_words()}")
        for count in repetitions or (sweep.spec.repetitions,):
            trials = plan_trials(sweep.spec, count)
            left = left_to_run(trials, records, unusable)
            progress.planned([one for one in left if one.configuration not in unusable], label)
            for trial in left:
                _require_same_code(sweep, stored_words)
                progress.started(trial)
                record = run_trial(sweep.spec, trial, records, runner)
                records.append(record)
                results.append(record)
                if trial.configuration not in unusable:
                    progress.finished(record)
    return folders.load_sweep(sweep.folder)


def left_to_run(
    trials: Sequence[TrialSpec], records: Sequence[TrialRecord], unusable: Container[Configuration]
) -> list[TrialSpec]:
    """The trials without a record. Those whose configuration cannot run here come first, so that
    they are stored before the others take minutes."""
    missing = missing_trials(trials, records)
    return sorted(missing, key=lambda trial: trial.configuration not in unusable)


def run_trial(
    spec: SweepSpec, trial: TrialSpec, records: Sequence[TrialRecord], runner: TrialRunner
) -> TrialRecord:
    """Run a trial of the sweep after those of the records, once more if something outside killed
    it. One that cannot run here, or is not worth running after what failed, has a record with the
    reason."""
    configuration = trial.configuration

    def run_now() -> TrialRecord:
        lacking = runner.unusable_reason(configuration)
        if reason := lacking or _failed_before(spec, configuration, records):
            return TrialRecord(trial=trial, status=Status.SKIPPED, reason=reason)
        return runner.run(_with_chosen_steps(trial, records), spec.time_limit_seconds)

    machines = runner.machines[: configuration.node_count]
    environment_ids = [machine.environment.environment_id for machine in machines]
    record = recorded(plain_label(configuration), run_now, environment_ids)
    return replace(record, trial=trial)  # with the steps that it was planned with


def _failed_before(
    spec: SweepSpec, configuration: Configuration, records: Sequence[TrialRecord]
) -> str | None:
    """Why a trial is not worth running: its script has failed in the same configuration, or has
    completed nothing, not even all ranks together, who run first (one rank alone some cannot run);
    or, with --stop-after-failure, the same has failed with as many replicas or fewer."""
    command = configuration.script_command
    works = any(
        record.status is Status.COMPLETED and record.configuration.script_command == command
        for record in records
    )

    def is_whole(other: Configuration) -> bool:
        return other.traits.communicates and other.group_size == max(spec.group_sizes)

    for record in records:
        if record.status in (Status.COMPLETED, Status.SKIPPED):
            continue
        failed = record.configuration
        if command:
            is_broken = not works and is_whole(failed) and failed.script_command == command
            again = failed == configuration or (is_broken and not is_whole(configuration))
        else:
            again = (
                spec.stop_after_failure
                and failed.of_one_replica == configuration.of_one_replica
                and failed.group_size <= configuration.group_size
            )
        if again:
            return f"{plain_label(failed)} failed"
    return None


def _with_chosen_steps(trial: TrialSpec, records: Sequence[TrialRecord]) -> TrialSpec:
    """The trial with the timed steps that an earlier one of its repetitions chose to fill its
    window. Repetitions of a model then train on the same samples; those of a script, which is timed
    in whole rounds, take about as many steps."""
    configuration = trial.configuration
    if configuration.window_seconds is not None:
        for record in records:
            if record.ranks and record.configuration == configuration:
                steps = len(record.ranks[0].timed.step_seconds)
                chosen = replace(configuration, window_seconds=None, steps=steps)
                return replace(trial, configuration=chosen)
    return trial


def _require_same_code(sweep: Sweep, stored_words: Callable[[], str]) -> None:
    """Raise UsageError if the user's code has changed, since every trial loads it again."""
    for workload in sweep.spec.workloads:
        if with_files(workload) != workload:
            back = "measure it again"
            if sweep.to_finish:
                back = f"put the old one back and finish with: {sweep.to_finish}"
            raise UsageError(
                f"{named_files(workload)} has changed while the sweep ran, and what is left would "
                f"measure something else; {stored_words()}; {back}"
            )


def kept_records(
    records: Sequence[TrialRecord], unusable: Container[Configuration] = ()
) -> list[TrialRecord]:
    """The records that a resumed sweep keeps: the last one of each trial that has completed, or
    whose configuration cannot run here."""
    last = {record.trial.trial_id: record for record in records}
    return [
        record
        for record in last.values()
        if record.status is Status.COMPLETED or record.configuration in unusable
    ]


def unusable_configurations(
    planned: Sequence[Configuration], runner: TrialRunner
) -> dict[Configuration, str]:
    """The configurations that this machine cannot run, each with the reason. Raises UsageError if
    none can, or none of those with a process group."""
    unusable = {
        configuration: reason
        for configuration in planned
        if (reason := runner.unusable_reason(configuration))
    }
    in_groups = [each for each in planned if each.backend in BACKENDS]
    if all(each in unusable for each in in_groups or planned):
        words = "; ".join(dict.fromkeys(unusable[each] for each in in_groups or planned))
        raise UsageError(
            f"nothing can be measured here: {words} (dpbench list names what can be used)"
        )
    return unusable


def _skip_lines(unusable: Mapping[Configuration, str]) -> Iterator[str]:
    """A line for each reason, with the series that it concerns."""
    for reason in dict.fromkeys(unusable.values()):
        skipped = [configuration for configuration, why in unusable.items() if why == reason]
        series = dict.fromkeys(f"{each.implementation}/{each.backend}" for each in skipped)
        yield f"skipped: {', '.join(series)}: {reason} ({units.counted(len(skipped), 'row')})"


def exit_status(records: Sequence[TrialRecord], wanted: Collection[str] | None = None) -> int:
    """WRONG_GRADIENTS before FAILED.

    It is FAILED as well if nothing completed of the `wanted` implementations: `single`
    alone, which is measured for speedups, is no answer.
    """
    counted = [record for group in by_configuration(records).values() for record in group]
    statuses = Counter(record.status for record in counted)
    if statuses[Status.WRONG_GRADIENTS]:
        return WRONG_GRADIENTS
    failed = any(statuses[status] for status in FAILED_STATUSES)
    answered = any(
        record.status is Status.COMPLETED
        and (wanted is None or record.configuration.implementation in wanted)
        for record in counted
    )
    return FAILED if failed or not answered else PASSED
