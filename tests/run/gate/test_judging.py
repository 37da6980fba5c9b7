"""What a check accepts: metrics and their tolerances."""

from __future__ import annotations

import pytest

from dpbench.errors import UsageError
from dpbench.options.bridge import read_options
from dpbench.options.check import CheckOptions
from dpbench.run.gate.judging import tolerances_of


def found(**given: object) -> dict[str, float]:
    return tolerances_of(read_options(CheckOptions, given))


def test_a_metric_may_have_a_tolerance_of_its_own() -> None:
    assert found() == {"images_per_second": 0.03}
    several = found(metric=["images_per_second,peak_memory_bytes=10%"], tolerance="5%")
    assert several == {"images_per_second": 0.05, "peak_memory_bytes": 0.10}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metric": ["speed"]}, "--metric: got 'speed'"),
        ({"metric": ["setup_seconds", "setup_seconds=1%"]}, "setup_seconds is listed twice"),
        ({"metric": ["setup_seconds=1"]}, "--metric setup_seconds: got '1'"),
        ({"tolerance": "x"}, "--tolerance: got 'x'; expected a percentage above 0 % and below"),
        ({"tolerance": "5"}, "--tolerance: got '5'; .*; did you mean 5%\\?"),
        ({"tolerance": 0.05}, '--tolerance: got 0.05; .*; did you mean "5%"\\?'),
        ({"repetitions": "1"}, "--repetitions: got '1'"),
        ({"budget": "soon"}, "--budget: got 'soon'"),
    ],
)
def test_what_cannot_be_used_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        found(**given)
