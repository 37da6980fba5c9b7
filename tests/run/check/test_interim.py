"""Repetitions grow while a check is inconclusive, to the sizes at which it is looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.comparisons.verdict import Verdict
from dpbench.analysis.noise import Disturbance
from dpbench.messages import said_to
from dpbench.options.check import CheckOptions
from dpbench.run.check import interim as module
from dpbench.run.check.interim import interim_analyses
from tests.analysis.builders import ALL_PASS, INCONCLUSIVE

PLAN = "at least 2 repetitions; while inconclusive, up to 12 as long as --budget 1 min 40 s lasts"
BUSY = Disturbance(note="other processes used 90 % of 2 cores", is_busy=True, is_heavy=True)
BLOCKED = replace(INCONCLUSIVE, disturbance=BUSY)


@pytest.mark.parametrize(
    ("verdicts", "budget", "goals", "said"),
    [
        ([ALL_PASS], 100.0, [2], [PLAN]),
        (
            [INCONCLUSIVE, INCONCLUSIVE, ALL_PASS],
            100.0,
            [2, 3, 5],
            [PLAN],
        ),
        (
            [INCONCLUSIVE] * 2,
            4.0,
            [2, 3],
            [
                "stopping after 3 repetitions without a verdict: --budget 4 s leaves no time for 2 "
                "more, about 2 s"
            ],
        ),
        (
            [INCONCLUSIVE] * 5,
            100.0,
            [2, 3, 5, 8, 12],
            [
                "stopping after 12 repetitions without a verdict: another look would make an error "
                "too likely"
            ],
        ),
        (
            [BLOCKED],
            100.0,
            [2],
            [
                "stopping after 2 repetitions without a verdict: other processes used 90 % of 2 "
                "cores"
            ],
        ),
    ],
)
def test_repetitions_grow_until_more_cannot_decide_or_have_no_time(
    verdicts: list[Verdict],
    budget: float,
    goals: list[int],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each repetition takes a second and nothing else does."""
    now, notes, reached = 0.0, list[str](), list[int]()
    monkeypatch.setattr(module, "monotonic", lambda: now)
    options = CheckOptions(against="torch-ddp", repetitions=2, budget=budget)
    given = iter(verdicts)
    monkeypatch.setattr(module, "assess_sides", lambda *_: next(given))
    with said_to(notes.append):
        for goal in interim_analyses(options, list):
            reached.append(goal)
            now = float(goal)
    assert reached == goals
    assert notes[-len(said) :] == said
