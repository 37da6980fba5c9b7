"""Laws through measured step times: values by hand, the published tables, and what bands cover."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.law import (
    conformal,
    continued,
    project,
    residuals,
)
from dpbench.analysis.projection.row import ProjectedRow
from dpbench.analysis.projection.series import Series
from dpbench.analysis.summary import summarize
from tests.analysis.projection.sweeps import curve, ddp_series, published, swept

Curve = Callable[[float], float]


def predicted(seconds: Curve, sizes: Sequence[int], n: int) -> ProjectedRow:
    """The row of one group size."""
    [row] = project(curve(seconds, sizes), [n])
    return row


@pytest.mark.parametrize(
    "seconds",
    [
        lambda n: 0.1,
        lambda n: 0.1 + 0.02 * (n - 1) / n,
        lambda n: 0.1 + 0.01 * math.log2(n),
        lambda n: 0.1 + 0.02 * (n - 1) / n + 0.01 * math.log2(n) + 0.003 * (n - 1),
    ],
    ids=["constant", "ring", "log", "all terms"],
)
def test_a_sum_of_terms_is_continued_exactly(seconds: Curve) -> None:
    row = predicted(seconds, (1, 2, 4, 8), 32)
    assert row.step_seconds is not None
    assert row.throughput is not None
    assert row.efficiency is not None
    assert row.step_seconds.value == pytest.approx(seconds(32))
    assert row.throughput.value == pytest.approx(32 / seconds(32))
    assert row.efficiency.value == pytest.approx(seconds(1) / seconds(32))


def test_two_sizes_go_on_with_half_of_the_last_rise_and_a_quarter() -> None:
    last, rise = 1.2, math.log(1.2)
    assert continued((1, 2), [1, last], 4).value == pytest.approx(math.log(last) + rise / 2)
    assert continued((1, 2), [1, last], 8).value == pytest.approx(math.log(last) + 0.75 * rise)
    # A step that got shorter is no reason to expect still shorter ones.
    assert continued((1, 2), [1, 0.9], 8).value == pytest.approx(math.log(0.9))


def test_between_measured_sizes_nothing_is_extrapolated() -> None:
    row = predicted(lambda n: 1 + 0.1 * math.log2(n), (1, 2, 8), 4)
    assert row.kind == "interpolated"
    assert row.step_seconds is not None
    assert row.step_seconds.value == pytest.approx(math.sqrt(1.1 * 1.3))


def noisy(value: float, noise: float) -> Estimate:
    """A measured speed whose logarithm may be off by `noise`."""
    return Estimate(
        value=value,
        low=value * math.exp(-noise),
        high=value * math.exp(noise),
        unit="images/s",
        sample_size=5,
        basis="repetitions",
    )


def with_noise(series: Series, noises: Sequence[float]) -> Series:
    """The series with intervals of its speeds."""
    pairs = zip(series.rows, series.speeds, noises, strict=True)
    rows = (replace(row, throughput=noisy(speed.value, noise)) for row, speed, noise in pairs)
    return replace(series, rows=tuple(rows))


def reaches(row: ProjectedRow) -> tuple[float, float]:
    """How far the logarithms of throughput and efficiency may be off above."""
    assert row.throughput is not None
    assert row.efficiency is not None
    speed, share = row.throughput, row.efficiency
    return math.log(speed.ends[1] / speed.value), math.log(share.ends[1] / share.value)


def test_an_efficiency_has_the_noise_of_what_it_is_against() -> None:
    series = curve(lambda n: 0.1, (1, 2, 4))
    [alone] = project(with_noise(series, (0.3, 0, 0)), [8])
    speed, efficiency = reaches(alone)
    assert efficiency == pytest.approx(math.hypot(speed, 0.3))
    [row] = project(replace(series, single=noisy(12.5, 0.2)), [8])
    assert row.efficiency is not None
    assert row.efficiency.value == pytest.approx(10 / 12.5)
    speed, efficiency = reaches(row)
    assert efficiency == pytest.approx(math.hypot(speed, 0.2))


def test_an_interpolated_row_has_the_noise_of_its_neighbors() -> None:
    series = curve(lambda n: 0.1, (1, 4, 16))
    [exact] = project(series, [2])
    [far] = project(with_noise(series, (0, 0, 0.3)), [2])
    [near] = project(with_noise(series, (0.1, 0.3, 0)), [2])
    assert reaches(far)[0] == pytest.approx(reaches(exact)[0])
    assert reaches(near)[0] == pytest.approx(math.hypot(reaches(exact)[0], 0.05, 0.15))


def test_measured_rows_have_the_efficiency_of_the_table() -> None:
    records = swept()
    (row,) = (r for r in summarize(records) if r.series == "ddp/gloo" and r.group_size == 2)
    (series,) = ddp_series(records)
    one, two = project(series, [1, 2])
    assert two.efficiency == row.efficiency
    assert one.efficiency is not None
    assert one.efficiency.value == pytest.approx(10 / 11)


@pytest.mark.parametrize(
    ("sizes", "n", "words"),
    [
        ((1, 2, 4), 17, "more than 4 × the largest measured group size (4)"),
        ((2, 4), 1, "below the smallest measured group size (2)"),
    ],
)
def test_no_size_is_predicted_below_or_far_beyond_the_data(
    sizes: Sequence[int], n: int, words: str
) -> None:
    row = predicted(lambda n: 0.1, sizes, n)
    assert row.kind == "refused"
    assert row.throughput is None
    assert words in (row.reason or "")


def test_conformal_bands_are_order_statistics() -> None:
    """Of 19 the smallest and the largest; of 39 the second ones from both ends."""
    nineteen = [place / 100 for place in range(-9, 10)]
    assert (conformal(nineteen).low, conformal(nineteen).high) == (-0.09, 0.09)
    more = conformal([place / 100 for place in range(-19, 20)])
    assert (more.low, more.high) == (-0.18, 0.18)
    assert more.at(4) == pytest.approx((-0.36, 0.36))


def test_published_tables_are_predicted() -> None:
    """Median errors of a step one doubling beyond the data, from two sizes and from more."""
    assert len(published()) == 15
    for sizes, most in ((2, 0.015), (3, 0.014)):
        errors = [abs(residual) for one in published() for residual in residuals(one, sizes)]
        assert len(errors) >= 19
        assert median(errors) < most


def test_bands_cover_series_that_they_were_not_calibrated_on() -> None:
    """Each series by the errors of all others."""
    for sizes in (2, 3):
        covered = []
        for left_out in published():
            others = [r for one in published() if one != left_out for r in residuals(one, sizes)]
            band = conformal(others)
            covered += [band.low <= r <= band.high for r in residuals(left_out, sizes)]
        assert sum(covered) / len(covered) >= 0.85
