"""Measuring a sweep into its results folder: what `sweep` and `check` share."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from dpbench import store, units
from dpbench.data.registry import PreparedData, is_function, prepare_dataset
from dpbench.data.user_code import files_sha256, named_files
from dpbench.errors import DataError, Interrupted, UsageError
from dpbench.files import folder_inside
from dpbench.launch.launcher import Launcher
from dpbench.launch.machine import Machine
from dpbench.launch.preflight import in_rank
from dpbench.messages import say
from dpbench.records.environment import Environment
from dpbench.records.trial import Status, TrialRecord
from dpbench.report.progress.trials import Reporter
from dpbench.run.interrupts import as_exceptions, end_at_once
from dpbench.run.sweep.grid import (
    FailedSeries,
    Rounds,
    missing,
    plan_hash,
    plan_trials,
    rows,
    run_trials,
    trial_number,
)
from dpbench.run.sweep.resume import lasting
from dpbench.run.this_machine import environment_here, test_launchers
from dpbench.specs import Labels, SweepSpec, TrialSpec, plain_label
from dpbench.specs.traits import BACKENDS
from dpbench.store import LOGS_FOLDER, StoredSweep, SweepStore
from dpbench.temporary import temporary_folder

if TYPE_CHECKING:
    from dpbench.launch.nodes import Team

PROBE_STEPS = 3
PROBE_LIMIT_SECONDS = 60.0
SECONDS_PER_TRIAL = 0.3
"""Start, verification and end of a trial on two CPU ranks (`make bench` measures it): the least,
where the probes took longer."""


def estimate_in_words(trials: Iterable[TrialSpec], launcher: Launcher) -> str:
    """The time that the trials take, from some steps of the plain module for each batch size, or
    why it is not known."""
    runs = list(trials)
    if not runs:
        return "nothing to run"
    starts, step_seconds = list[float](), dict[TrialSpec, float]()
    for probe in dict.fromkeys(map(_probe, runs)):
        begun = monotonic()
        outcome = launcher.run(probe, PROBE_LIMIT_SECONDS)
        if outcome.status is not Status.COMPLETED:
            return f"duration unknown (a step of {plain_label(probe)} did not complete)"
        step = outcome.ranks[0].timed.seconds / PROBE_STEPS
        starts.append(monotonic() - begun - (probe.warmup_steps + PROBE_STEPS) * step)
        step_seconds[probe] = step
    seconds = len(runs) * max(min(starts), SECONDS_PER_TRIAL)
    for trial in runs:
        step = step_seconds[_probe(trial)]
        seconds += step * _steps(trial, step)
    duration = units.seconds(seconds)
    return f"about {duration} at the present speed of the machine, without communication"


def _probe(trial: TrialSpec) -> TrialSpec:
    """The plain module on what one replica has to do."""
    return replace(
        trial.of_one_replica,
        implementation="single",
        backend="none",
        batch_size=max(trial.replica_batch_sizes),
        scaling="weak",
        warmup_steps=1,
        timed_steps=PROBE_STEPS,
        window_seconds=None,
        phase_steps=0,
        gradient_steps=0,
        repetition=0,
    ).with_own_settings


def _steps(trial: TrialSpec, step_seconds: float) -> int:
    windows = 2 if trial.times_without_sync else 1
    timed = trial.filling_steps(step_seconds)
    steps = trial.warmup_steps + windows * (timed + trial.phase_steps)
    if trial.repetition == 0 and trial.traces_gradients:
        steps += trial.gradient_steps
    return steps


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A sweep, and how it is to be measured."""

    spec: SweepSpec
    folder: Path
    command: Sequence[str]
    """The command line after "dpbench"."""
    data_dir: Path | None = None
    quiet: bool = False
    resumed: bool = False
    """The folder already exists."""
    stop_after_failure: bool = False
    to_finish: str | None = None
    """The command that finishes it after an interrupt."""
    notes: Sequence[str] = ()
    """Notes that the user must see once it is known that the sweep can run."""
    embedded: bool = False
    """Whether the caller handles signals, as a program that uses dpbench does."""
    team: Team | None = None
    """The nodes of a sweep over several; the caller then handles signals."""


def measure(job: Measurement, machine: Machine, rounds: Rounds) -> StoredSweep:
    """Run the trials that `rounds` asks for, round by round, and store each record as it comes.

    Raises UsageError if none of the backends can be used, and Interrupted, whose message says what
    is stored, if a signal ends the sweep.
    """
    with launcher_for(job, machine) as launcher:
        unusable = unusable_rows(job.spec, launcher)
        say(*job.notes)
        opened = (
            SweepStore(job.folder)
            if job.resumed
            else SweepStore.create(job.folder, job.spec, job.command)
        )
        with opened as results, nullcontext() if job.embedded else as_exceptions():
            team = job.team
            environment = team.nodes[0].environment if team else environment_here(machine)
            _Measuring(job, launcher, results, environment, unusable).run(rounds)
    return store.load(job.folder)


def unusable_rows(spec: SweepSpec, launcher: Launcher) -> dict[TrialSpec, str]:
    """The configurations that this machine cannot run, each with the reason. Raises UsageError if
    none of those with a process group can run."""
    configurations = dict.fromkeys(trial.configuration for trial in plan_trials(spec, 1))
    reasons = {one: launcher.unusable_reason(one) for one in configurations}
    found = {one: reason for one, reason in reasons.items() if reason}
    with_backend = [one for one in configurations if BACKENDS[one.backend].process_group]
    if with_backend and all(one in found for one in with_backend):
        words = dict.fromkeys(found[one] for one in with_backend)
        raise UsageError(
            f"--backends {','.join(spec.backends)}: {'; '.join(words)} (dpbench list names the "
            "backends that can be used)"
        )
    return found


@contextmanager
def launcher_for(
    job: Measurement, machine: Machine, logs: Path | None = None
) -> Iterator[Launcher]:
    """A launcher with its dataset prepared; the logs of failed trials go into the job's folder,
    unless `logs` is another one."""
    with temporary_folder() as scratch:
        if not job.embedded and job.team is None:
            end_at_once()
        if launchers := test_launchers():
            yield launchers.trial_launcher()
            return
        prepared = _prepare_data(job, scratch)
        from dpbench.launch.trials import HostLauncher

        here = HostLauncher(machine, prepared, logs or folder_inside(job.folder, LOGS_FOLDER))
        if job.team is None:
            yield here
            return
        from dpbench.launch.nodes import NodesLauncher

        job.team.agree(plan_hash(job.spec))
        yield NodesLauncher(job.team, here, partial(trial_number, job.spec))


class _Measuring:
    """The rounds of one measurement."""

    def __init__(
        self,
        job: Measurement,
        launcher: Launcher,
        results: SweepStore,
        here: Environment,
        unusable: Mapping[TrialSpec, str],
    ) -> None:
        self._job = job
        self._launcher = launcher
        self._results = results
        self._here = here
        # Those of a sweep that is resumed.
        self._records = lasting(store.load(job.folder).records, unusable)
        self._failed = FailedSeries() if job.stop_after_failure else None
        self._waiting: Sequence[TrialSpec] = ()
        self._unusable = unusable
        for node in job.team.nodes if job.team else ():
            results.add_environment(node.environment)
        results.add_environment(here)

    def run(self, rounds: Rounds) -> None:
        names = Labels.among(rows(self._job.spec))
        try:
            with Reporter(quiet=self._job.quiet, label=names.configuration) as progress:
                self._say_what_cannot_run()
                if self._job.resumed:
                    self._say_what_is_stored()
                while waiting := rounds(tuple(self._records)):
                    self._run(waiting, progress)
        except (KeyboardInterrupt, Interrupted) as error:
            number = getattr(error, "signal_number", signal.SIGINT)
            rest = f"; to finish: {self._job.to_finish}" if self._job.to_finish else ""
            raise Interrupted(number, f"interrupted: {self._stored_words()}{rest}") from None

    def _say_what_cannot_run(self) -> None:
        """Print the rows that will be skipped, before the others take minutes."""
        for reason in dict.fromkeys(self._unusable.values()):
            skipped = [one for one, why in self._unusable.items() if why == reason]
            series = dict.fromkeys(f"{one.implementation}/{one.backend}" for one in skipped)
            say(f"skipped: {', '.join(series)}: {reason} ({units.counted(len(skipped), 'row')})")

    def _say_what_is_stored(self) -> None:
        if stored := self._count(self._records):
            planned = self._usable(plan_trials(self._job.spec))
            say(f"resuming: {units.stored(stored, len(planned))}")

    def _usable(self, trials: Iterable[TrialSpec]) -> list[TrialSpec]:
        return [trial for trial in trials if trial.configuration not in self._unusable]

    def _count(self, records: Iterable[TrialRecord]) -> int:
        """Number of trials with records, without those that this machine cannot run."""
        return len({trial.trial_id for trial in self._usable(r.trial for r in records)})

    def _run(self, waiting: Sequence[TrialSpec], progress: Reporter) -> None:
        def started(trial: TrialSpec) -> None:
            self._require_same_code()
            progress.started(trial)

        run = partial(
            run_trials,
            launcher=self._launcher,
            environment_id=self._here.environment_id,
            time_limit_seconds=self._job.spec.time_limit_seconds,
            stop_after_failure=self._failed,
            complete=self._on_hosts,
            steps_of=self._steps_of,
        )
        self._waiting = self._usable(waiting)
        for record in run([one for one in waiting if one.configuration in self._unusable]):
            self._store(record)
        progress.planned(self._waiting)
        for record in run(self._waiting, on_start=started):
            self._store(record)
            progress.finished(record)

    def _store(self, record: TrialRecord) -> None:
        self._results.append(record)
        self._records.append(record)

    def _steps_of(self, trial: TrialSpec) -> int | None:
        """The timed steps that an earlier repetition chose, so that all of a configuration train on
        the same samples; None if there is none."""
        if trial.window_seconds is None:
            return None
        for record in self._records:
            if record.trial.configuration == trial.configuration and record.ranks:
                return record.ranks[0].timed_steps
        return None

    def _require_same_code(self) -> None:
        """Raise UsageError if the user's code has changed, since every trial loads it again."""
        for workload in self._job.spec.workloads:
            if files_sha256(workload) == workload.files_sha256:
                continue
            finish = self._job.to_finish
            back = f"put the old one back and finish with: {finish}"
            remedy = back if finish else "measure it again"
            raise UsageError(
                f"{named_files(workload)} has changed while the sweep ran, and what is left would "
                f"measure something else; {self._stored_words()}; {remedy}"
            )

    def _on_hosts(self, record: TrialRecord) -> TrialRecord:
        """The record with the hosts that it needed, and the one whose loss is its reason."""
        team = self._job.team
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

    def _stored_words(self) -> str:
        records = [record for record in self._records if record.lost_host is None]
        stored = self._count(records)
        total = stored + len(missing(self._waiting, records))
        return f"{stored} of {units.counted(total, 'trial')} are stored in {self._results.folder}"


def _prepare_data(job: Measurement, cache: Path) -> dict[str, Path | None]:
    """The folder of each architecture's dataset, in a form that ranks load in milliseconds.

    Raises DataError for a dataset that is smaller than a batch.
    """
    known: dict[str, PreparedData] = {}
    folders: dict[str, Path | None] = {}
    if job.spec.workload.script:
        return {}
    for workload in job.spec.workloads:
        named, dataset = workload.architecture, workload.dataset
        if dataset not in known:
            work = partial(prepare_dataset, dataset, data_dir=job.data_dir, cache=cache)
            theirs = is_function(dataset)
            known[dataset] = in_rank(f"dataset {dataset!r}", work) if theirs else work()
        prepared = known[dataset]
        trials = (one for one in plan_trials(job.spec, 1) if one.workload.architecture == named)
        largest, replicas = max(
            ((trial.global_batch_size, trial.group_size) for trial in trials), default=(0, 0)
        )
        if prepared.samples is not None and largest > prepared.samples:
            raise DataError(
                f"--batch-sizes: a global batch of {largest} for "
                f"{units.counted(replicas, 'replica')} is more than the {prepared.samples} samples "
                f"of {dataset}; use smaller batches, fewer --gpus, or --data synthetic"
            )
        folders[named] = prepared.folder
    return folders
