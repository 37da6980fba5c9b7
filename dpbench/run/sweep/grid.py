"""A sweep: the grid of trials that it plans, which of them run next, and their records.

`plan_trials` is pure. `run_trials` yields a record per trial and never touches a file: the caller
stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace

from dpbench import units
from dpbench.codec import content_hash
from dpbench.launch.launcher import Launcher, TrialOutcome, attempts
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import BASELINE, SweepSpec, TrialSettings, TrialSpec, plain_label
from dpbench.specs.traits import IMPLEMENTATIONS

Rounds = Callable[[Sequence[TrialRecord]], Sequence[TrialSpec]]
"""Returns the trials to run next, from all records so far in their order; none at the end."""


def plan_trials(spec: SweepSpec, repetitions: int | None = None) -> tuple[TrialSpec, ...]:
    """All trials in the order they run: a palindrome over repetitions (A B C, C B A, A B C …).

    A drift of the machine then falls on all configurations alike. `repetitions` may differ from the
    sweep's own where they grow.
    """
    first_pass = [*rows(spec)]
    return tuple(
        replace(trial, repetition=repetition)
        for repetition in range(spec.repetitions if repetitions is None else repetitions)
        for trial in (first_pass if repetition % 2 == 0 else reversed(first_pass))
    )


def trial_number(spec: SweepSpec, trial: TrialSpec) -> int:
    """The place of a trial in the plan, however many repetitions that grows to."""
    return plan_trials(spec, trial.repetition + 1).index(trial)


def numbered_trial(spec: SweepSpec, number: int) -> TrialSpec:
    """The trial at that place in the plan."""
    return plan_trials(spec, number // len(rows(spec)) + 1)[number]


def plan_hash(spec: SweepSpec) -> str:
    """Hash of the rows of a plan; nodes compare it to check that their plans are equal."""
    return content_hash([trial.trial_id for trial in rows(spec)])


def missing(trials: Sequence[TrialSpec], records: Sequence[TrialRecord]) -> list[TrialSpec]:
    """The trials that have no record yet, in their order."""
    done = {record.trial.trial_id for record in records}
    return [trial for trial in trials if trial.trial_id not in done]


def unfinished(spec: SweepSpec, records: Sequence[TrialRecord]) -> str:
    """How many trials were run, as in "44 of 48 trials"; "" if none is missing.

    Configurations that were skipped count neither as run nor as missing.
    """
    skipped = {one.trial.configuration for one in records if one.status is Status.SKIPPED}
    left = missing(plan_trials(spec), records)
    waiting = sum(trial.configuration not in skipped for trial in left)
    done = len({one.trial.trial_id for one in records if one.status is not Status.SKIPPED})
    return f"{done:,} of {units.counted(done + waiting, 'trial')}" if waiting else ""


def run_trials(
    trials: Iterable[TrialSpec],
    launcher: Launcher,
    *,
    environment_id: str,
    time_limit_seconds: float,
    earlier: Iterable[TrialRecord] = (),
    stop_after_failure: bool = False,
    on_start: Callable[[TrialSpec], None] | None = None,
    complete: Callable[[TrialRecord], TrialRecord] | None = None,
) -> Iterator[TrialRecord]:
    """Run the trials one after the other.

    `earlier` are the records of the sweep so far, `on_start` is called before each trial, and
    `complete` adds fields to its record. A trial that something outside killed is retried once.
    With `stop_after_failure`, once a row has failed at one group size, its further repetitions and
    its larger groups are skipped with that reason. A training script that has failed in its
    largest group before any of its runs completed is not run again with the same arguments.
    """
    trials, records = [*trials], [*earlier]
    largest = max((trial.group_size for trial in trials), default=1)

    def refuse(trial: TrialSpec) -> TrialOutcome | None:
        reason = _failed_before(trial, records) if stop_after_failure else None
        reason = reason or _script_failed(trial, records, largest)
        reason = reason or launcher.unusable_reason(trial)
        return TrialOutcome(status=Status.SKIPPED, reason=reason) if reason else None

    def run(trial: TrialSpec) -> TrialOutcome:
        return launcher.run(trial, time_limit_seconds, _steps_chosen(trial, records))

    for trial, outcome, timing in attempts(
        trials, run, refuse, label=plain_label, on_start=on_start
    ):
        record = TrialRecord(
            trial=trial,
            environment_id=environment_id,
            status=outcome.status,
            item=outcome.item,
            items_per_sample=outcome.items_per_sample,
            reason=outcome.reason,
            ranks=outcome.ranks,
            verification=outcome.verification,
            flops_per_item=outcome.flops_per_item,
            host_load=outcome.host_load,
            **timing,
        )
        record = complete(record) if complete else record
        records.append(record)
        yield record


def _failed_before(trial: TrialSpec, records: Iterable[TrialRecord]) -> str | None:
    """Why `trial` is not worth running: the same row has failed with as many replicas or fewer."""
    row = trial.configuration.of_one_replica
    failed = [
        record.trial
        for record in records
        if record.status not in (Status.COMPLETED, Status.SKIPPED)
        and record.lost_host is None
        and record.trial.group_size <= trial.group_size
        and record.trial.configuration.of_one_replica == row
    ]
    if not failed:
        return None
    first = min(failed, key=lambda one: one.group_size)
    return f"not run: {plain_label(first)} has failed (--stop-after-failure)"


def _script_failed(trial: TrialSpec, records: Iterable[TrialRecord], largest: int) -> str | None:
    """Why a script is not worth running again with these arguments: it has failed in the largest
    group, and no run of it has completed. On one rank alone it may fail, as some scripts do."""
    same = [one for one in records if one.trial.script and one.trial.script == trial.script]
    if any(one.status is Status.COMPLETED for one in same):
        return None
    failed = (
        one.trial for one in same if one.status is Status.FAILED and one.trial.group_size == largest
    )
    first = next(failed, None)
    return None if first is None else f"not run: {plain_label(first)} has failed, as all before it"


def _steps_chosen(trial: TrialSpec, records: Iterable[TrialRecord]) -> int | None:
    """The timed steps that an earlier repetition chose, so that all of a configuration train on the
    same samples; None if there is none, or the number is fixed."""
    if trial.window_seconds is None:
        return None
    chosen = (
        record.ranks[0].timed_steps
        for record in records
        if record.ranks and record.trial.configuration == trial.configuration
    )
    return next(chosen, None)


def rows(spec: SweepSpec) -> tuple[TrialSpec, ...]:
    """The measured rows, each once.

    Rows that are compared most often run closest together in time. `single` at group size 1 is
    among them, as every speedup needs it. An implementation has no further rows for settings
    that it lacks.
    """
    names = [BASELINE] if spec.measures_baseline else []
    names = [*dict.fromkeys((*names, *spec.implementations))]
    found: dict[TrialSpec, None] = {}
    for batch_size in spec.batch_sizes:
        for group_size in dict.fromkeys((1, *spec.group_sizes)):
            for name in names:
                for trial in _with_backends(name, group_size, batch_size, spec):
                    varied = (spec.varied(trial, values) for values in spec.variants())
                    found |= dict.fromkeys(varied)
    return tuple(found)


def _with_backends(
    implementation: str, group_size: int, batch_size: int, spec: SweepSpec
) -> Iterator[TrialSpec]:
    """The trials of an implementation, none at a group size that it does not have."""
    traits = IMPLEMENTATIONS[implementation]
    if implementation in spec.largest_group_only:
        has_size = group_size == max(spec.group_sizes) > 1
    elif traits.largest_group is not None:
        has_size = group_size <= traits.largest_group
    else:
        has_size = group_size in spec.group_sizes
    if not has_size:
        return
    for backend in spec.backends if traits.backend is None else (traits.backend,):
        trial = TrialSpec(
            **{field.name: getattr(spec, field.name) for field in fields(TrialSettings)},
            implementation=implementation,
            backend=backend,
            group_size=group_size,
            batch_size=batch_size,
            devices=spec.devices_of(group_size),
            nodes=spec.nodes_of(group_size),
        )
        yield trial.with_own_settings
