"""Repetitions grow while a check is inconclusive, to the sizes at which it is looked at."""

from __future__ import annotations

import pytest

from dpbench.messages import said_to
from dpbench.run.gate import looks as module
from dpbench.run.gate.looks import looks


class Check:
    """Each repetition takes a second and nothing else does; it is settled after `enough`."""

    now = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "monotonic", lambda: self.now)

    def run(self, *, enough: int, budget: float) -> tuple[list[int], list[str]]:
        self.now, goals, said = 0.0, list[int](), list[str]()
        with said_to(said.append):
            for goal in looks(2, budget, lambda: goals[-1] >= enough):
                goals.append(goal)
                self.now = float(goal)
        return goals, said


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    return Check(monkeypatch)


def test_it_is_looked_at_at_growing_sizes_until_it_is_settled(check: Check) -> None:
    assert check.run(enough=2, budget=0.0) == ([2], [])
    goals, said = check.run(enough=4, budget=100.0)
    assert goals == [2, 3, 5]
    assert said[0] == "not settled yet: up to 3 repetitions; 2 s of 1 min 40 s used"


def test_the_budget_ends_it_before_repetitions_that_would_not_fit(check: Check) -> None:
    goals, said = check.run(enough=99, budget=4.0)
    assert goals == [2, 3]
    assert said[-1] == (
        "not settled after 3 repetitions and 3 s: --budget 4 s leaves no time for 2 more, about 2 s"
    )


def test_after_the_last_look_nothing_is_added(check: Check) -> None:
    goals, said = check.run(enough=99, budget=100.0)
    assert goals == [2, 3, 5, 8, 12]
    assert said[-1].startswith("not settled after 12 repetitions; ")
