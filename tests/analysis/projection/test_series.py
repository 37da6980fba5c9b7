"""Rows beyond and between measured group sizes: their numbers, bands and refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.law import ACROSS_NODES
from dpbench.analysis.projection.series import ProjectedRow, Series, project_by_law
from dpbench.analysis.rows import summarize
from dpbench.errors import UsageError
from tests.analysis.projection.sweeps import curve, ddp_series, swept


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
    rows = (
        replace(row, values={"images_per_second": noisy(speed.value, noise)})
        for row, speed, noise in pairs
    )
    return replace(series, rows=tuple(rows))


def reaches(row: ProjectedRow) -> tuple[float, float]:
    """How far the logarithms of throughput and efficiency may be off above."""
    assert row.throughput is not None
    assert row.efficiency is not None
    speed, share = row.throughput, row.efficiency
    return math.log(speed.ends[1] / speed.value), math.log(share.ends[1] / share.value)


def test_a_row_has_step_throughput_and_efficiency() -> None:
    [row] = project_by_law(curve(lambda n: 0.1 * 1.2 ** math.log2(n), (1, 2)), [4]).rows
    step = 0.1 * 1.2 ** (4 / 3)
    assert row.kind == "extrapolated"
    assert row.step_seconds is not None
    assert row.throughput is not None
    assert row.efficiency is not None
    assert row.step_seconds.value == pytest.approx(step)
    assert row.throughput.value == pytest.approx(4 / step)
    assert row.efficiency.value == pytest.approx(0.1 / step)
    assert row.efficiency.confidence == 0.9


def test_an_efficiency_has_the_noise_of_what_it_is_against() -> None:
    series = curve(lambda n: 0.1, (1, 2, 4))
    [alone] = project_by_law(with_noise(series, (0.3, 0, 0)), [8]).rows
    speed, efficiency = reaches(alone)
    assert efficiency == pytest.approx(math.hypot(speed, 0.3))
    [row] = project_by_law(replace(series, single=noisy(12.5, 0.2)), [8]).rows
    assert row.efficiency is not None
    assert row.efficiency.value == pytest.approx(10 / 12.5)
    speed, efficiency = reaches(row)
    assert efficiency == pytest.approx(math.hypot(speed, 0.2))


def test_an_interpolated_row_has_the_noise_of_its_neighbors() -> None:
    series = curve(lambda n: 0.1, (1, 4, 16))
    [exact] = project_by_law(series, [2]).rows
    [far] = project_by_law(with_noise(series, (0, 0, 0.3)), [2]).rows
    [near] = project_by_law(with_noise(series, (0.1, 0.3, 0)), [2]).rows
    assert exact.kind == "interpolated"
    assert reaches(far)[0] == pytest.approx(reaches(exact)[0])
    assert reaches(near)[0] == pytest.approx(math.hypot(reaches(exact)[0], 0.05, 0.15))


def test_measured_rows_have_the_efficiency_of_the_table() -> None:
    records = swept()
    (row,) = (r for r in summarize(records) if r.series == "ddp/gloo" and r.group_size == 2)
    (series,) = ddp_series(records)
    one, two = project_by_law(series, [1, 2]).rows
    assert two.efficiency == row.efficiency
    assert one.efficiency is not None
    assert one.efficiency.value == pytest.approx(10 / 11)


def test_a_second_node_is_predicted_slower_and_with_a_wider_band() -> None:
    series = curve(lambda n: 0.1, (1, 2, 4))
    [within] = project_by_law(series, [8], per_node=8).rows
    [across] = project_by_law(series, [8], per_node=4).rows
    assert (within.kind, across.kind) == ("extrapolated", "next node")
    assert within.throughput is not None
    assert across.throughput is not None
    shift = math.log(within.throughput.value / across.throughput.value)
    assert shift == pytest.approx(0.1 * ACROSS_NODES.middle)
    assert shift > 0.01
    low, high = across.throughput.ends
    assert math.log(high / low) > 1.5 * math.log(
        within.throughput.ends[1] / within.throughput.ends[0]
    )


def test_a_backend_of_one_machine_goes_to_no_second_node() -> None:
    (series,) = ddp_series(swept())
    rows = (
        replace(row, trial=row.trial and replace(row.trial, backend="shm")) for row in series.rows
    )
    shared = replace(series, rows=tuple(rows))
    [row] = project_by_law(shared, [4], per_node=2).rows
    assert row.reason == "shm works on one machine only, and a node has 2 ranks"


def test_one_group_size_is_refused_with_what_to_measure() -> None:
    with pytest.raises(UsageError, match="at least two group sizes, got 2; measure more"):
        project_by_law(curve(lambda n: 0.1, (2,)), None)


@pytest.mark.parametrize(("n", "words"), [(17, "more than 4 ×"), (1, "below the smallest")])
def test_a_size_out_of_reach_is_a_row_with_the_reason(n: int, words: str) -> None:
    [row] = project_by_law(curve(lambda n: 0.1, (2, 4)), [n]).rows
    assert (row.kind, row.throughput) == ("refused", None)
    assert words in (row.reason or "")
