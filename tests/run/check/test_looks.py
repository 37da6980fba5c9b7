"""Repetitions grow while a check is inconclusive, to the sizes at which it is looked at."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dpbench.analysis.comparisons.verdict import Verdict
from dpbench.analysis.noise import MachineLoad
from dpbench.messages import said_to
from dpbench.options.check import CheckOptions
from dpbench.run.check import plan as module
from dpbench.run.check.plan import MAX_LOOKS, looks
from tests.analysis.builders import ALL_PASS, INCONCLUSIVE, under_load

BUSY = MachineLoad(note="others used 90 % of 2 cores", spoils_speeds=True, spoils_differences=True)
BLOCKED = under_load(INCONCLUSIVE, BUSY)


@pytest.mark.parametrize(
    ("verdicts", "budget", "counts", "said"),
    [
        ([ALL_PASS], 200.0, [2], ""),
        ([INCONCLUSIVE, INCONCLUSIVE, ALL_PASS], 200.0, [2, 3, 5], "measuring 2 more, about 4 s"),
        ([INCONCLUSIVE] * 3, 8.0, [2, 3, 4], "one more would end after the budget of 8 s"),
        ([INCONCLUSIVE], 1.0, [2], "inconclusive after 2 repetitions: one more would end after"),
        ([INCONCLUSIVE] * MAX_LOOKS, 200.0, [2, 3, 5, 8, 12, 18, 27, 41], "measuring 14 more"),
        ([BLOCKED], 200.0, [2], ""),
    ],
)
def test_repetitions_grow_until_more_cannot_decide_or_have_no_time(
    verdicts: list[Sequence[Verdict]],
    budget: float,
    counts: list[int],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each repetition takes a second on each side, and nothing else does."""
    now, reached, messages = 0.0, list[int](), [""]
    monkeypatch.setattr(module, "monotonic", lambda: now)
    options = CheckOptions(against="dp", repetitions=2, budget=budget)
    given = iter(verdicts)
    monkeypatch.setattr(module, "assess_sides", lambda *_: next(given))
    with said_to(messages.append):
        for count in looks(options, list):
            reached.append(count)
            now = 2.0 * count
    assert reached == counts
    assert said in messages[-1]
