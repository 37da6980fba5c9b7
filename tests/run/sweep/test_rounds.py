"""When repetitions are added, to what, and when they stop: on records that nobody measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from dpbench.launch.synthetic import SyntheticLauncher
from dpbench.records.trial import TrialRecord
from dpbench.run.sweep import rounds
from dpbench.run.sweep.grid import plan_trials, run_trials
from dpbench.run.sweep.rounds import UntilSettled
from dpbench.specs import TrialSpec
from tests.builders import sweep_spec

SPEC = sweep_spec(
    implementations=("ddp",), group_sizes=(1,), batch_sizes=(4,), repetitions=2, precision=0.01
)
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
    monkeypatch.setattr(rounds, "monotonic", lambda: clock.now)
    return clock


def passes(
    clock: Clock,
    unsettled: rounds.Unsettled,
    budget: float,
    most_looks: int | None = None,
    earlier: Sequence[TrialRecord] = (),
) -> tuple[list[list[TrialSpec]], list[str]]:
    said: list[str] = []
    next_round = UntilSettled(
        SPEC,
        unsettled,
        budget_seconds=budget,
        say=said.append,
        most_looks=most_looks,
        spent_seconds=sum(record.duration_seconds for record in earlier),
    )
    records = list(earlier)
    done: list[list[TrialSpec]] = []
    while waiting := next_round(tuple(records)):
        done.append(list(waiting))
        records += clock.records(waiting)
    return done, said


def test_what_is_settled_is_not_repeated(clock: Clock) -> None:
    done, said = passes(clock, lambda records: frozenset(), budget=100.0)
    assert done == [list(plan_trials(SPEC))]
    assert said == []


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
    assert said[0] == "1 row of 2 not settled yet: up to 3 repetitions; 4 s of 1 min 40 s spent"


def test_passes_keep_the_palindrome(clock: Clock) -> None:
    def unsettled(records: Sequence[TrialRecord]) -> frozenset[TrialSpec]:
        return frozenset({SINGLE, DDP}) if len(records) < 6 else frozenset()

    done, _ = passes(clock, unsettled, budget=100.0)
    assert [trial.configuration for trial in done[1]] == [SINGLE, DDP]
    assert [t.configuration for t in done[0]] == [SINGLE, DDP, DDP, SINGLE]


def test_the_budget_ends_it_before_a_pass_that_would_not_fit(clock: Clock) -> None:
    done, said = passes(clock, lambda records: frozenset({SINGLE, DDP}), budget=7.0)
    assert sum(map(len, done)) == 6
    assert said[-1] == (
        "the budget of 7 s does not hold another pass over 2 rows; it would take 2 s"
    )


def test_after_the_last_look_nothing_is_added(clock: Clock) -> None:
    looked_at: list[int] = []

    def never(records: Sequence[TrialRecord]) -> frozenset[TrialSpec]:
        looked_at.append(len(records))
        return frozenset({SINGLE, DDP})

    done, said = passes(clock, never, budget=100.0, most_looks=3)
    assert looked_at == [4, 6, 10]
    assert sum(map(len, done)) == 10
    assert said[-1].startswith("2 rows of 2 not settled after 3 looks")


@pytest.mark.parametrize("stored", range(1, 13))
def test_an_interrupted_sweep_goes_on_as_if_it_had_not_been(clock: Clock, stored: int) -> None:
    """Of 13 trials: a plan of 4, then 3 passes over both, then 3 over ddp."""
    looked_at: list[int] = []

    def unsettled(records: Sequence[TrialRecord]) -> frozenset[TrialSpec]:
        counts = Counter(record.trial.configuration for record in records)
        looked_at.append(counts[DDP])
        return frozenset({SINGLE, DDP} if counts[DDP] < 5 else {DDP} if counts[DDP] < 8 else {})

    whole, _ = passes(clock, unsettled, budget=100.0)
    order = [trial for one in whole for trial in one]
    assert len(order) == 13
    looked_at.clear()
    done, _ = passes(clock, unsettled, budget=100.0, earlier=clock.records(order[:stored]))
    assert [trial for one in done for trial in one] == order[stored:]
    assert looked_at == [2, 3, 5, 8]


def test_the_budget_is_that_of_all_runs_of_a_sweep(clock: Clock) -> None:
    earlier = clock.records(plan_trials(SPEC))
    done, said = passes(clock, lambda _: frozenset({DDP}), budget=4.5, earlier=earlier)
    assert done == []
    assert said == ["the budget of 4.5 s does not hold another pass over 1 row; it would take 1 s"]
