"""A sweep: the grid of trials it plans, and their records as they happen.

`plan` is pure. `run` yields a record per trial and never touches a file: the caller stores it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic

from dpbench.launch.launcher import Launcher, Outcome
from dpbench.records import Status, TrialRecord
from dpbench.specs import IMPLEMENTATIONS, SweepSpec, TrialSpec

BASELINE = "single"


def plan(spec: SweepSpec) -> tuple[TrialSpec, ...]:
    """All trials in the order they run: a palindrome over repetitions (A B C, C B A, A B C …).

    A drift of the machine then falls on all configurations alike. `single` at group size 1 is
    always among them: the absolute speedup needs it.
    """
    first_pass = list(_configurations(spec))
    if spec.order_seed is not None:
        random.Random(spec.order_seed).shuffle(first_pass)
    return tuple(
        replace(trial, repetition=repetition)
        for repetition in range(spec.repetitions)
        for trial in (first_pass if repetition % 2 == 0 else reversed(first_pass))
    )


def run(
    trials: Iterable[TrialSpec],
    launcher: Launcher,
    *,
    environment_id: str,
    time_limit_seconds: float,
    on_start: Callable[[TrialSpec], None] | None = None,
) -> Iterator[TrialRecord]:
    """Runs the trials one after the other; `on_start` hears of each before it starts."""
    for trial in trials:
        if on_start:
            on_start(trial)
        yield _run_trial(trial, launcher, environment_id, time_limit_seconds)


def _run_trial(
    trial: TrialSpec, launcher: Launcher, environment_id: str, time_limit_seconds: float
) -> TrialRecord:
    started_utc = datetime.now(UTC).isoformat(timespec="milliseconds")
    started = monotonic()
    reason = launcher.unusable_reason(trial)
    if reason is None:
        outcome = launcher.run(trial, time_limit_seconds)
    else:
        outcome = Outcome(status=Status.SKIPPED, reason=reason)
    return TrialRecord(
        trial=trial,
        environment_id=environment_id,
        started_utc=started_utc,
        duration_seconds=monotonic() - started,
        status=outcome.status,
        item=outcome.item,
        reason=outcome.reason,
        ranks=outcome.ranks,
        verification=outcome.verification,
    )


def _configurations(spec: SweepSpec) -> Iterator[TrialSpec]:
    """The grid; what is compared most often lies closest together in time."""
    names = dict.fromkeys((BASELINE, *spec.implementations))
    for batch_size in spec.batch_sizes:
        for group_size in dict.fromkeys((1, *spec.group_sizes)):
            for name in names:
                if group_size in _group_sizes(name, spec):
                    yield from _with_backends(name, group_size, batch_size, spec)


def _group_sizes(implementation: str, spec: SweepSpec) -> tuple[int, ...]:
    largest = IMPLEMENTATIONS[implementation].largest_group
    return spec.group_sizes if largest is None else tuple(range(1, largest + 1))


def _with_backends(
    implementation: str, group_size: int, batch_size: int, spec: SweepSpec
) -> Iterator[TrialSpec]:
    traits = IMPLEMENTATIONS[implementation]
    for backend in spec.backends if traits.backend is None else (traits.backend,):
        yield TrialSpec(
            workload=spec.workload,
            implementation=implementation,
            backend=backend,
            group_size=group_size,
            batch_size=batch_size,
            warmup_steps=spec.warmup_steps,
            timed_steps=spec.timed_steps,
            threads_per_replica=spec.threads_per_replica,
            devices=spec.devices[:group_size],
            scaling=spec.scaling,
            accumulation_steps=spec.accumulation_steps,
            sync_every=spec.sync_every if traits.averages_parameters else 1,
        )
