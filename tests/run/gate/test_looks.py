"""Repetitions grow while a configuration is unsettled, to the sizes at which it is looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from dpbench.records.trial import TrialRecord
from dpbench.run.gate import looks
from dpbench.run.gate.looks import UntilSettled
from dpbench.run.sweep.grid import plan_trials, run_trials
from dpbench.specs import TrialSpec
from tests.builders import sweep_spec
from tests.launch.synthetic import SyntheticLauncher

SPEC = sweep_spec(implementations=("ddp",), group_sizes=(1,), batch_sizes=(4,), repetitions=2)
SINGLE, DDP = (trial.configuration for trial in plan_trials(SPEC, 1))


class Clock:
    """Trials take a second each; nothing else takes any time."""

    now = 0.0

    def records(self, trials: Iterable[TrialSpec]) -> list[TrialRecord]:
        done = run_trials(trials, SyntheticLauncher(), environment_id="e", time_limit_seconds=1.0)
        timed = [replace(record, duration_seconds=1.0) for record in done]
        self.now += len(timed)
        return timed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(looks, "monotonic", lambda: clock.now)
    return clock


def passes(
    clock: Clock,
    unsettled: looks.Unsettled,
    budget: float,
    most_looks: int = 9,
) -> tuple[list[list[TrialSpec]], list[str]]:
    said: list[str] = []
    next_round = UntilSettled(
        SPEC,
        unsettled,
        budget_seconds=budget,
        say=said.append,
        most_looks=most_looks,
    )
    records: list[TrialRecord] = []
    done: list[list[TrialSpec]] = []
    while waiting := next_round(tuple(records)):
        done.append(list(waiting))
        records += clock.records(waiting)
    return done, said


def test_only_what_is_unsettled_is_repeated_and_looked_at_at_growing_sizes(clock: Clock) -> None:
    looked_at: list[int] = []

    def unsettled(records: Sequence[TrialRecord]) -> frozenset[TrialSpec]:
        counts = Counter(record.trial.configuration for record in records)
        looked_at.append(counts[DDP])
        return frozenset({DDP}) if counts[DDP] < 8 else frozenset()

    done, said = passes(clock, unsettled, budget=100.0)
    assert looked_at == [2, 3, 5, 8]
    assert [[trial.repetition for trial in one] for one in done[1:]] == [[n] for n in range(2, 8)]
    assert {trial.configuration for one in done[1:] for trial in one} == {DDP}
    assert said[0] == "not settled yet: up to 3 repetitions; 4 s of 1 min 40 s used"


def test_the_budget_ends_it_before_a_pass_that_would_not_fit(clock: Clock) -> None:
    done, said = passes(clock, lambda records: frozenset({SINGLE, DDP}), budget=7.0)
    assert sum(map(len, done)) == 6
    assert said[-1] == ("the budget of 7 s leaves no time for another repetition, about 2 s")
    _, said = passes(clock, lambda records: frozenset({SINGLE, DDP}), budget=1.0)
    assert said == ["the budget of 1 s is used up"]


def test_after_the_last_look_nothing_is_added(clock: Clock) -> None:
    looked_at: list[int] = []

    def never(records: Sequence[TrialRecord]) -> frozenset[TrialSpec]:
        looked_at.append(len(records))
        return frozenset({SINGLE, DDP})

    done, said = passes(clock, never, budget=100.0, most_looks=3)
    assert looked_at == [4, 6, 10]
    assert sum(map(len, done)) == 10
    assert said[-1].startswith("not settled after 5 repetitions")
