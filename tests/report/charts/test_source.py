"""Captions: what intervals are, and how many values have none."""

from __future__ import annotations

from dataclasses import replace

from dpbench.analysis.estimate import Estimate
from dpbench.report.charts.source import interval_words

SINGLE = Estimate(value=2.0, unit="s", sample_size=1, basis="single value")
SPREAD = Estimate(value=2.0, low=1.0, high=3.0, unit="s", sample_size=3, basis="repetitions")


def test_a_caption_has_the_confidence_and_the_sample_sizes() -> None:
    assert interval_words([SPREAD, replace(SPREAD, sample_size=2)]) == [
        "bars: 95 % interval over n = 2–3 repetitions",
    ]


def test_values_without_an_interval_are_counted() -> None:
    _, words = interval_words([SPREAD, SINGLE, SINGLE])
    assert words == "2 points without a bar: n = 1"
