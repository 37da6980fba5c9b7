from __future__ import annotations

import pytest

from dpbench.errors import UsageError
from dpbench.run.sweep.effort import Effort
from dpbench.run.sweep.effort import effort as effort_of
from tests.cli.typed import options_of


def effort(**typed: str) -> tuple[Effort, list[str]]:
    notes: list[str] = []
    return effort_of(options_of([], **typed), notes), notes


def test_without_a_precision_steps_and_repetitions_are_fixed() -> None:
    fixed, notes = effort()
    assert (fixed.timed_steps, fixed.repetitions, fixed.steps_grow) == ((50,), 4, False)
    assert (fixed.precision, fixed.budget_seconds, notes) == (None, None, [])
    assert effort(steps="7", repetitions="2")[0].timed_steps == (7,)
    assert effort(steps="7,9")[0].timed_steps == (7, 9)


def test_a_precision_lets_steps_and_repetitions_grow_within_a_budget_that_is_told() -> None:
    growing, notes = effort(precision="2%")
    assert growing == Effort(
        timed_steps=(10_000,), steps_grow=True, repetitions=6, precision=0.02, budget_seconds=600.0
    )
    assert notes == ["--budget 10m for repetitions, the default with --precision"]


def test_given_steps_stay_fixed_when_repetitions_grow() -> None:
    growing, notes = effort(precision="0.5%", steps="40", budget="90s", repetitions="2")
    assert (growing.timed_steps, growing.steps_grow, growing.repetitions) == ((40,), False, 2)
    assert (growing.precision, growing.budget_seconds, notes) == (0.005, 90.0, [])
    several, _ = effort(precision="0.5%", steps="40,80")
    assert (several.timed_steps, several.steps_grow) == ((40, 80), False)


def test_steps_that_grow_alone_have_a_precision_that_is_told() -> None:
    growing, notes = effort(steps="auto", budget="1m")
    assert (growing.precision, growing.steps_grow) == (0.01, True)
    assert notes == ["--steps auto: until --precision 1%"]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"budget": "3s"}, "--precision, which is not given"),
        ({"precision": "3"}, "is not a percentage"),
        ({"precision": "0%"}, "is not a percentage"),
        ({"precision": "100%"}, "is not a percentage"),
        ({"precision": "1%", "repetitions": "1"}, "at least 2 repetitions"),
        ({"precision": "1%", "budget": "soon"}, "is not a duration"),
        ({"repetitions": "100000"}, "expected at most 10,000"),
        ({"steps": "many"}, "--steps: 'many'"),
        ({"steps": "20,"}, "--steps: '20,' has an empty entry"),
        ({"steps": "20,auto"}, "--steps 20,auto: windows of auto grow as far as --precision takes"),
        ({"steps": "many", "precision": "1%"}, "--steps: 'many'"),
    ],
)
def test_values_that_do_not_fit_are_refused(typed: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        effort(**typed)
