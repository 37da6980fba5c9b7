"""Repetitions grow while a check is inconclusive, to the sizes at which it is looked at."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dpbench.analysis.comparisons.verdict import Verdict
from dpbench.analysis.noise import MachineLoad
from dpbench.options.check import CheckOptions
from dpbench.run.check import plan as module
from dpbench.run.check.plan import MAX_LOOKS, looks
from tests.analysis.builders import ALL_PASS, INCONCLUSIVE, under_load

BUSY = MachineLoad(note="others used 90 % of 2 cores", spoils_speeds=True, spoils_differences=True)
BLOCKED = under_load(INCONCLUSIVE, BUSY)


@pytest.mark.parametrize(
    ("against", "verdicts", "budget", "counts"),
    [
        ("against", [ALL_PASS], 100.0, [2]),
        ("against", [INCONCLUSIVE, INCONCLUSIVE, ALL_PASS], 100.0, [2, 3, 5]),
        ("against", [INCONCLUSIVE] * 3, 4.0, [2, 3, 4]),
        ("against", [INCONCLUSIVE] * MAX_LOOKS, 100.0, [2, 3, 5, 8, 12, 18, 27, 41]),
        ("against", [BLOCKED], 100.0, [2]),
        ("against_ref", [BLOCKED, BLOCKED], 100.0, [2, 3]),
        ("against_ref", [ALL_PASS, ALL_PASS], 1.0, [2, 3]),
    ],
)
def test_repetitions_grow_until_more_cannot_decide_or_have_no_time(
    against: str,
    verdicts: list[Sequence[Verdict]],
    budget: float,
    counts: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each repetition takes a second and nothing else does; the last look uses the budget up, and
    one look at two versions is not enough."""
    now, reached = 0.0, list[int]()
    monkeypatch.setattr(module, "monotonic", lambda: now)
    options = CheckOptions(**{against: "dp"}, repetitions=2, budget=budget)
    given = iter(verdicts)
    monkeypatch.setattr(module, "assess_sides", lambda *_: next(given))
    for count in looks(options, list):
        reached.append(count)
        now = float(count)
    assert reached == counts
