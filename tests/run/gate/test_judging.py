"""What a check accepts as metrics; tests/golden has what it refuses."""

from __future__ import annotations

from dpbench.options.bridge import read_options
from dpbench.options.check import CheckOptions
from dpbench.run.gate.judging import tolerances_of


def test_a_metric_may_have_a_tolerance_of_its_own() -> None:
    assert tolerances_of(CheckOptions()) == {"images_per_second": 0.03}
    given = {"metric": ["images_per_second,peak_memory_bytes=10%"], "tolerance": "5%"}
    several = tolerances_of(read_options(CheckOptions, given))
    assert several == {"images_per_second": 0.05, "peak_memory_bytes": 0.10}
