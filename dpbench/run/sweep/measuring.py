"""Measuring a sweep into its results folder: what `sweep`, `check` and `explain` share."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dpbench import folders, units
from dpbench.analysis.noise import load_warning
from dpbench.analysis.rows import by_configuration
from dpbench.architecture.naming import named_files, with_files
from dpbench.errors import FAILED, PASSED, WRONG_GRADIENTS, UsageError
from dpbench.folders import ResultsFolder, Sweep, missing_trials
from dpbench.launch.trial_runner import TrialRunner, recorded
from dpbench.messages import say, warn
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status, TrialRecord
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.interrupts import interruptible
from dpbench.run.sweep.plan import SweepPlan, plan_sweep
from dpbench.specs import Configuration, Labels, SweepSpec, TrialSpec, plain_label
from dpbench.specs.traits import BACKENDS

FAILED_STATUSES = {Status.FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.DIVERGED}
"""Statuses with which a sweep ends with exit status 1."""


def measure(plan: SweepPlan, progress: TrialProgress) -> Sweep:
    """Run the trials of a sweep that are not stored yet; see `open_run` for what it raises."""
    with open_run(plan, progress) as run:
        run.until(plan.sweep.spec.repetitions)
    return folders.load_sweep(plan.sweep.folder)


def measure_here(options: SweepOptions, progress: TrialProgress) -> Sweep:
    """Plan and measure the sweep of these options on this node alone."""
    with plan_sweep(options) as plan:
        return measure(plan, progress)


@dataclass
class SweepRun:
    """A sweep that is being measured. Each record is stored as soon as its trial ends."""

    plan: SweepPlan
    results: ResultsFolder
    progress: TrialProgress
    unusable: Container[Configuration]
    """Configurations that cannot run here: their trials have a record nevertheless."""
    records: list[TrialRecord]
    """Those that it began with, and all that it has measured."""
    repetitions: int

    def until(self, repetitions: int) -> list[TrialRecord]:
        """Run what is missing of the trials of so many repetitions, and return the new records.

        Raises UsageError if the user's code has changed.
        """
        self.repetitions = repetitions
        spec, earlier = self.plan.sweep.spec, len(self.records)
        left = left_to_run(
            replace(spec, repetitions=repetitions).trials, self.records, self.unusable
        )
        usable = [trial for trial in left if trial.configuration not in self.unusable]
        self.progress.planned(usable, Labels.among(spec.configurations))
        for trial in left:
            self._require_same_code()
            self.progress.started(trial)
            record = run_trial(spec, trial, self.records, self.plan.runner)
            self.records.append(record)
            self.results.append(record)
            if trial.configuration not in self.unusable:
                self.progress.finished(record)
        return self.records[earlier:]

    def stored_words(self) -> str:
        """Writes "3 of 8 trials are stored in results/x"."""
        trials = replace(self.plan.sweep.spec, repetitions=self.repetitions).trials
        left = missing_trials(trials, self.records)
        return f"{units.stored(len(trials) - len(left), len(trials))} in {self.results.folder}"

    def interrupted_words(self) -> str:
        """The same, with the command that finishes the sweep, if there is one."""
        to_finish = self.plan.sweep.to_finish
        return f"{self.stored_words()}{f'; to finish: {to_finish}' if to_finish else ''}"

    def _require_same_code(self) -> None:
        """Raise UsageError if the user's code has changed, since every trial loads it again."""
        for workload in self.plan.sweep.spec.workloads:
            if with_files(workload) != workload:
                raise UsageError(
                    f"{named_files(workload)} has changed while the sweep ran, and what is left "
                    "would measure something else: put the old one back, or measure it again; "
                    f"{self.interrupted_words()}"
                )


@contextmanager
def open_run(plan: SweepPlan, progress: TrialProgress) -> Iterator[SweepRun]:
    """Begin to measure a sweep, in a new folder or, if it is resumed, in the one that it has.

    Raises UsageError if none of the backends can be used, and Interrupted, whose message says what
    is stored, if a signal ends the block.
    """
    sweep, runner = plan.sweep, plan.runner
    planned = sweep.spec.configurations
    unusable = unusable_configurations(planned, runner)
    warn(*sweep.warnings)
    say(*plan.notes, *_skip_lines(unusable), *load_warning(runner.load, planned[0]))
    if plan.resumes:
        results = ResultsFolder(sweep.folder)
    else:
        results = ResultsFolder.create(sweep.folder, sweep.command, sweep.spec)
    kept = kept_records(sweep.records, unusable)
    run = SweepRun(plan, results, progress, unusable, kept, sweep.spec.repetitions)
    with results, interruptible(run.interrupted_words), progress:
        for machine in runner.machines:
            results.add_environment(machine.environment)
        if plan.resumes:
            say(f"resuming: {run.stored_words()}")
        yield run


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
    ended = (Status.COMPLETED, Status.SKIPPED)
    failures = [record.configuration for record in records if record.status not in ended]
    command = configuration.script_command
    blamed: list[Configuration] = []
    if command:
        completed = [one.configuration for one in records if one.status is Status.COMPLETED]
        works = any(one.script_command == command for one in completed)

        def is_whole(other: Configuration) -> bool:
            return other.traits.communicates and other.group_size == max(spec.group_sizes)

        for failed in failures:
            is_broken = not works and is_whole(failed) and failed.script_command == command
            if failed == configuration or (is_broken and not is_whole(configuration)):
                blamed.append(failed)
    elif spec.stop_after_failure:
        alike = [one for one in failures if one.of_one_replica == configuration.of_one_replica]
        blamed = [one for one in alike if one.group_size <= configuration.group_size]
    return f"{plain_label(blamed[0])} failed" if blamed else None


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
    reasons = {configuration: runner.unusable_reason(configuration) for configuration in planned}
    unusable = {configuration: why for configuration, why in reasons.items() if why}
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
    statuses = {record.status for record in counted}
    if Status.WRONG_GRADIENTS in statuses:
        return WRONG_GRADIENTS
    answered = any(
        record.status is Status.COMPLETED
        and (wanted is None or record.configuration.implementation in wanted)
        for record in counted
    )
    return FAILED if statuses & FAILED_STATUSES or not answered else PASSED
