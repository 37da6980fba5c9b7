"""A sweep that this process plans and measures, as `sweep`, `check` and `explain` do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import ceil

from dpbench import folders, units
from dpbench.analysis.noise import disturbed_repetitions, load_warning
from dpbench.architecture.naming import named_files, with_files
from dpbench.errors import FAILED, PASSED, WRONG_GRADIENTS, UsageError
from dpbench.folders import ResultsFolder, Sweep
from dpbench.launch.trial_runner import TrialRunner, recorded
from dpbench.messages import say
from dpbench.records.trial import Status, TrialRecord
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.interrupts import interruptible
from dpbench.specs import Configuration, Labels, plain_label
from dpbench.specs.traits import BACKENDS


class SweepRun:
    """A sweep with its records so far, and the runner of the trials that are left."""

    def __init__(self, sweep: Sweep, runner: TrialRunner, *, resumes: bool = False) -> None:
        """The sweep is new or, if this `resumes` it, as it is stored: the record of a trial then
        stays if it completed, or if its configuration cannot run here.

        Raises UsageError if nothing can be measured here.
        """
        self.runner = runner
        self.unusable = self._unusable(sweep.spec.configurations)
        """The reason for each configuration that cannot run here. Its trials have a record, too."""
        kept = (
            record
            for record in sweep.records
            if record.status is Status.COMPLETED or record.configuration in self.unusable
        )
        self.sweep = replace(sweep, records=tuple(kept))
        """The sweep with the records that stay and those of this run."""
        self._resumes = resumes
        self._has_begun = False

    @property
    def left(self) -> list[tuple[Configuration, int]]:
        """The trials without a record that can run here."""
        return [(each, number) for each, number in self.sweep.missing if each not in self.unusable]

    @property
    def stored_words(self) -> str:
        """Writes "3 of 8 trials are stored", of those that can run here."""
        spec = self.sweep.spec
        planned = spec.repetitions * (len(spec.configurations) - len(self.unusable))
        return units.stored(planned - len(self.left), planned)

    def measure(self, progress: TrialProgress, repetitions: int | None = None) -> Sweep:
        """Run the trials that are left, of so many `repetitions` if they are to be more than
        planned, and return the sweep as it is stored. Each record is stored as its trial ends.

        Without `repetitions`, those that other programs disturbed run once more, if they are few.
        Rows are compared within a repetition, so it runs whole; its new records count.

        Raises UsageError if the user's code has changed, and Interrupted, whose message says what
        is stored, if a signal ends it.
        """
        with self._opened() as results, interruptible(self._interrupted_words), progress:
            if repetitions is not None:  # the folder keeps the number that was planned
                spec = replace(self.sweep.spec, repetitions=repetitions)
                self.sweep = replace(self.sweep, spec=spec)
            left = self.left
            for configuration, repetition in self.sweep.missing:
                if configuration in self.unusable:  # at once, as the others may take minutes
                    results.append(self._run(configuration, repetition))
            self._run_all(left, results, progress)
            if left and repetitions is None:
                self._run_all(self._disturbed(), results, progress)
        return folders.load_sweep(self.sweep.folder)

    def _run_all(
        self,
        trials: Sequence[tuple[Configuration, int]],
        results: ResultsFolder,
        progress: TrialProgress,
    ) -> None:
        """Run the trials, and store their records."""
        labels = Labels.among(self.sweep.spec.configurations)
        progress.planned([configuration for configuration, _ in trials], labels)
        measured = {(one.configuration, one.repetition) for one in self.sweep.records}
        for configuration, repetition in trials:
            if (configuration, repetition) in measured and self._failed_before(configuration):
                continue  # its record stays, and is no skip
            self._require_same_code()
            progress.started(configuration)
            record = self._run(configuration, repetition)
            results.append(record)
            progress.finished(record)

    def _disturbed(self) -> list[tuple[Configuration, int]]:
        """The completed trials of disturbed repetitions, which run again; the user reads why. What
        failed has its row already."""
        records = self.sweep.records
        disturbed = disturbed_repetitions(records)
        again = {
            (record.configuration, record.repetition): record.duration_seconds
            for record in records
            if record.repetition in disturbed and record.status is Status.COMPLETED
        }
        if again:
            count = units.counted(len(disturbed), "repetition")
            took = units.seconds(ceil(sum(again.values())))
            say(f"other programs disturbed {count}: measuring again, about {took}")
        return [trial for trial in self.sweep.spec.trials if trial in again]

    def _opened(self) -> ResultsFolder:
        """The folder for more records. The first time it is made, unless the sweep is resumed, and
        the user reads what will be skipped."""
        sweep, runner = self.sweep, self.runner
        if self._has_begun:
            return ResultsFolder(sweep.folder)
        say(*self._skip_lines(), *load_warning(runner.load, sweep.spec.configurations[0]))
        if self._resumes:
            results = ResultsFolder(sweep.folder)
            say(f"resuming: {self.stored_words} in {sweep.folder}")
        else:
            results = ResultsFolder.create(sweep.folder, sweep.command, sweep.spec)
        for machine in runner.machines:
            results.add_environment(machine.environment)
        self._has_begun = True
        return results

    def _skip_lines(self) -> Iterator[str]:
        """A line for each reason, with the series that it concerns."""
        for reason in dict.fromkeys(self.unusable.values()):
            skipped = [
                configuration for configuration, why in self.unusable.items() if why == reason
            ]
            series = dict.fromkeys(f"{each.implementation}/{each.backend}" for each in skipped)
            yield f"skipped: {', '.join(series)}: {reason} ({units.counted(len(skipped), 'row')})"

    def _interrupted_words(self) -> str:
        """What is stored, with the command that finishes the sweep, if there is one."""
        to_finish = f"; to finish: {self.sweep.to_finish}" if self.sweep.to_finish else ""
        return f"{self.stored_words} in {self.sweep.folder}{to_finish}"

    def _unusable(self, planned: tuple[Configuration, ...]) -> dict[Configuration, str]:
        """See `unusable`; raises UsageError if nothing can be measured, or nothing in a group."""
        reasons = {each: self.runner.unusable_reason(each) for each in planned}
        unusable = {each: reason for each, reason in reasons.items() if reason}
        needed = [each for each in planned if each.backend in BACKENDS] or planned
        if all(each in unusable for each in needed):
            backends = ", ".join(dict.fromkeys(each.backend for each in needed))
            nothing = "nothing" if len(unusable) == len(planned) else f"nothing with {backends}"
            words = "; ".join(dict.fromkeys(unusable[each] for each in needed))
            raise UsageError(
                f"{nothing} can be measured here: {words} (dpbench list names what can be used)"
            )
        return unusable

    def _require_same_code(self) -> None:
        """Raise UsageError if the user's code has changed, since every trial loads it again."""
        for workload in self.sweep.spec.workloads:
            if with_files(workload) != workload:
                raise UsageError(
                    f"{named_files(workload)} has changed while the sweep ran, and what is left "
                    "would measure something else: put the old one back, or measure it again; "
                    f"{self._interrupted_words()}"
                )

    def _run(self, configuration: Configuration, repetition: int) -> TrialRecord:
        """Run a trial without a record, once more if something outside killed it. If it cannot run
        here, or is not worth running after what failed, the record has the reason."""

        def run_now() -> TrialRecord:
            if reason := self.unusable.get(configuration) or self._failed_before(configuration):
                return TrialRecord(
                    configuration=configuration, status=Status.SKIPPED, reason=reason
                )
            chosen = self._with_chosen_steps(configuration)
            return self.runner.run(chosen, repetition, self.sweep.spec.time_limit_seconds)

        machines = self.runner.machines[: configuration.node_count]
        environment_ids = [machine.environment.environment_id for machine in machines]
        record = recorded(plain_label(configuration), run_now, environment_ids)
        # As the trial was planned, with its number of steps.
        record = replace(record, configuration=configuration, repetition=repetition)
        self.sweep = self.sweep.with_records([record])
        return record

    def _failed_before(self, configuration: Configuration) -> str | None:
        """Why a trial is not worth running: its script has failed in the same configuration, or has
        completed nothing, not even all ranks together, who run first (one rank alone some cannot
        run); or, with --stop-after-failure, the same has failed with as many replicas or fewer."""
        spec = self.sweep.spec
        records = self.sweep.records
        failures = [record.configuration for record in records if record.status.is_failure]
        command = configuration.script_command
        blamed: list[Configuration] = []
        if command:
            works = any(
                record.status is Status.COMPLETED and record.configuration.script_command == command
                for record in records
            )

            def is_whole(other: Configuration) -> bool:
                return other.traits.communicates and other.group_size == max(spec.group_sizes)

            for failed in failures:
                is_broken = not works and is_whole(failed) and failed.script_command == command
                if failed == configuration or (is_broken and not is_whole(configuration)):
                    blamed.append(failed)
        elif spec.stop_after_failure:
            blamed = [
                failed
                for failed in failures
                if failed.of_one_replica == configuration.of_one_replica
                and failed.group_size <= configuration.group_size
            ]
        return f"{plain_label(blamed[0])} failed" if blamed else None

    def _with_chosen_steps(self, configuration: Configuration) -> Configuration:
        """The configuration with the timed steps that an earlier repetition chose to fill its
        window. Repetitions of a model then train on the same samples; those of a script, which is
        timed in whole rounds, take about as many steps."""
        if configuration.window_seconds is not None:
            for record in self.sweep.records:
                if record.ranks and record.configuration == configuration:
                    steps = len(record.ranks[0].timed.step_seconds)
                    return replace(configuration, window_seconds=None, steps=steps)
        return configuration


def exit_status(records: Sequence[TrialRecord], wanted: Collection[str] | None = None) -> int:
    """The exit status of a sweep with these records: WRONG_GRADIENTS goes before FAILED.

    It is FAILED as well if nothing completed of the `wanted` implementations: `single` alone, which
    is measured for speedups, is no answer.
    """
    if any(record.status is Status.WRONG_GRADIENTS for record in records):
        return WRONG_GRADIENTS
    answered = any(
        record.status is Status.COMPLETED
        and (wanted is None or record.configuration.implementation in wanted)
        for record in records
    )
    failed = any(record.status.is_failure for record in records)
    return FAILED if failed or not answered else PASSED
