"""What a check accepts: metrics, their tolerances, and how much is measured."""

from __future__ import annotations

import pytest

from dpbench.errors import UsageError
from dpbench.options.bridge import read_options
from dpbench.options.check import CheckOptions
from dpbench.run.gate.judging import Check, tolerances_of


def found(**given: object) -> Check:
    options = read_options(CheckOptions, given)
    return Check(options=options, tolerances=tolerances_of(options))


def test_the_defaults_are_three_percent_of_the_speed() -> None:
    defaults = found()
    assert defaults.tolerances == {"images_per_second": 0.03}
    assert defaults.describe() == "tolerance: images_per_second 3 %; not strict"
    assert defaults.describe_plan() == (
        "at least 5 repetitions; while inconclusive, up to 27 as long as --budget 5 min lasts"
    )


def test_a_metric_may_have_a_tolerance_of_its_own() -> None:
    several = found(metric=["images_per_second,peak_memory_bytes=10%"], tolerance="5%")
    assert several.tolerances == {"images_per_second": 0.05, "peak_memory_bytes": 0.10}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metric": ["speed"]}, "--metric: got 'speed'"),
        ({"metric": ["setup_seconds", "setup_seconds=1%"]}, "setup_seconds is listed twice"),
        ({"metric": ["setup_seconds=1"]}, "--metric setup_seconds: got '1'"),
        ({"tolerance": "x"}, "--tolerance: got 'x'; expected a percentage"),
        ({"tolerance": "5"}, "--tolerance: got '5'; expected a percentage .*; did you mean 5%\\?"),
        ({"repetitions": "1"}, "--repetitions: got '1'"),
        ({"budget": "soon"}, "--budget: got 'soon'"),
    ],
)
def test_what_cannot_be_used_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        found(**given)
