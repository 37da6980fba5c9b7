"""Captions: what intervals are, which values have none, and the machine, in words that agree."""

from __future__ import annotations

from dataclasses import replace

from dpbench.analysis.estimate import Estimate
from dpbench.environment import SYNTHETIC, capture
from dpbench.report.charts.source import MADE_UP, environment_line, interval_words

SINGLE = Estimate(value=2.0, unit="s", sample_size=1, basis="single value")
SPREAD = Estimate(value=2.0, low=1.0, high=3.0, unit="s", sample_size=3, basis="repetitions")


def test_the_confidence_is_that_of_the_estimates() -> None:
    wider = replace(SPREAD, confidence=0.9, sample_size=4)
    assert interval_words([SPREAD, wider, replace(SPREAD, sample_size=2)]) == [
        "bars: 90 % interval over n = 4 repetitions",
        "bars: 95 % interval over n = 2–3 repetitions",
    ]


def test_one_value_and_several_are_counted_as_people_do() -> None:
    _, one = interval_words([SPREAD, SINGLE])
    assert one == "1 point without a bar: single value (n = 1)"
    _, two = interval_words([SPREAD, SINGLE, SINGLE], noun="cell", lacking="one")
    assert two == "2 cells without one: single values (n = 1)"
    assert interval_words([SINGLE] * 2) == ["all points without a bar: single values (n = 1)"]


def test_a_machine_may_have_one_core() -> None:
    machine = replace(capture(), cpu="Z80", cores=1)
    assert "Z80, 1 core, " in environment_line({"e0": machine}, {"e0"})


def test_made_up_numbers_say_so_and_name_no_machine() -> None:
    made_up = replace(capture(), launcher=SYNTHETIC)
    assert environment_line({"m": made_up}, {"m"}) == MADE_UP
    assert environment_line({"m": made_up, "o": made_up}, {"m", "o"}) == MADE_UP
    both = {"m": made_up, "e": capture()}
    assert environment_line(both, {"m", "e"}) == "environments e, m (synthetic)"
