"""A sweep: the grid of trials that it plans, which of them run next, and their records.

`plan_trials` is pure. `run_trials` yields a record per trial and never touches a file: the caller
stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace

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


def run_trials(
    trials: Iterable[TrialSpec],
    launcher: Launcher,
    *,
    environment_id: str,
    time_limit_seconds: float,
    on_start: Callable[[TrialSpec], None] | None = None,
    stop_after_failure: FailedSeries | None = None,
    complete: Callable[[TrialRecord], TrialRecord] | None = None,
    steps_of: Callable[[TrialSpec], int | None] = lambda _: None,
) -> Iterator[TrialRecord]:
    """Run the trials one after the other.

    `on_start` is called before each trial, `steps_of` gives the steps of its window (None leaves
    them to the trial), `complete` adds fields to its record. A trial that something outside killed
    is retried once. With `stop_after_failure`, once a series has failed at one group size, its
    larger ones are skipped with that reason.
    """
    failed = stop_after_failure

    def refuse(trial: TrialSpec) -> TrialOutcome | None:
        reason = (failed and failed.reason(trial)) or launcher.unusable_reason(trial)
        return TrialOutcome(status=Status.SKIPPED, reason=reason) if reason else None

    for trial, outcome, timing in attempts(
        trials,
        lambda trial: launcher.run(trial, time_limit_seconds, steps_of(trial)),
        refuse,
        label=plain_label,
        on_start=on_start,
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
        if complete:
            record = complete(record)
        if failed:
            failed.add(record)
        yield record


class FailedSeries:
    """The series (all but the group size equal) that failed, with the first failed group size."""

    def __init__(self) -> None:
        self._failed: dict[TrialSpec, TrialSpec] = {}

    def add(self, record: TrialRecord) -> None:
        if record.status in (Status.COMPLETED, Status.SKIPPED) or record.lost_host is not None:
            return
        series = _series(record.trial)
        known = self._failed.get(series)
        if known is None or record.trial.group_size < known.group_size:
            self._failed[series] = record.trial

    def reason(self, trial: TrialSpec) -> str | None:
        """Why `trial` is not worth running; None if it is."""
        failed = self._failed.get(_series(trial))
        if failed is None or trial.group_size < failed.group_size:
            return None
        return f"not run: {plain_label(failed)} has failed (--stop-after-failure)"


def _series(trial: TrialSpec) -> TrialSpec:
    return trial.configuration.of_one_replica


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
