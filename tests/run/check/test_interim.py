"""Repetitions grow while a check is inconclusive, to the numbers at which it is judged again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.comparisons.comparison import Comparison
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.noise import MachineLoad
from dpbench.messages import said_to
from dpbench.options.check import CheckOptions
from dpbench.run.check import checking
from dpbench.run.check.checking import MAX_ANALYSES, measure_until_clear
from tests.analysis.builders import ALL_PASS, INCONCLUSIVE, side

BUSY = MachineLoad(note="others used 90 % of 2 cores", spoils_speeds=True, spoils_differences=True)
BLOCKED = replace(INCONCLUSIVE, machine_load=BUSY)


@pytest.mark.parametrize(
    ("found", "budget", "counts", "said"),
    [
        ([ALL_PASS], 200.0, [2], ""),
        ([INCONCLUSIVE, INCONCLUSIVE, ALL_PASS], 200.0, [2, 3, 5], "measuring 2 more, about 4 s"),
        ([INCONCLUSIVE] * 3, 8.0, [2, 3, 4], "one more would end after the budget of 8 s"),
        ([INCONCLUSIVE], 1.0, [2], "inconclusive after 2 repetitions: one more would end after"),
        ([INCONCLUSIVE] * MAX_ANALYSES, 200.0, [2, 3, 5, 8, 12, 18, 27, 41], "measuring 14 more"),
        ([BLOCKED], 200.0, [2], ""),
    ],
)
def test_repetitions_grow_until_more_cannot_decide_or_have_no_time(
    found: list[Comparison],
    budget: float,
    counts: list[int],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each repetition takes a second on each side, and nothing else does."""
    reached, messages, given = [0], [""], iter(found)

    def measure(repetitions: range) -> tuple[Side, Side]:
        assert repetitions.start == reached[-1]
        reached.append(repetitions.stop)
        return side("a"), side("b")

    monkeypatch.setattr(checking, "monotonic", lambda: 2.0 * reached[-1])
    monkeypatch.setattr(checking, "assess", lambda *_, **__: next(given))
    with said_to(messages.append):
        measure_until_clear(CheckOptions(against="dp", repetitions=2, budget=budget), measure)
    assert reached[1:] == counts
    assert said in messages[-1]
