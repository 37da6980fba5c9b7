"""Bandwidth by size: both of nccl-tests' numbers, and the copies that bound them."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes

from dpbench.analysis.communication.timings import measured
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import capture
from dpbench.records.trial import Status
from dpbench.report.charts.bandwidth import bandwidth
from dpbench.report.charts.source import ChartSource, NothingToDraw
from tests.analysis.communication.collective_records import (
    SIZES,
    collective_record,
    collective_spec,
    failed_record,
)
from tests.report.charts.sources import caption

SOURCE = ChartSource(rows=(), environments={"e0": capture()}, name="demo")


def sample(*group_sizes: int) -> list[CollectiveRecord]:
    """Three repetitions on gloo: 100 µs and 1.5 GB/s, within 2 %; copies of 10 GB/s."""
    return [
        collective_record(
            collective_spec(backend="gloo", group_size=group_size, repetition=repetition),
            lambda size, factor=factor: factor * (100e-6 + size / 1.5e9),
            copy_bytes_per_second=10e9,
        )
        for repetition, factor in enumerate((0.98, 1.0, 1.02))
        for group_size in group_sizes
    ]


def heights(axes: Axes) -> list[list[float]]:
    lines = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
    return [ys for ys in lines if len(ys) == len(SIZES)]


def words(axes: Axes) -> set[str]:
    return {text.get_text() for text in axes.texts}


def test_lines_are_busbw_and_algbw_of_the_analysis_below_that_of_copies() -> None:
    records = sample(4)
    figure = bandwidth(records, SOURCE)
    (axes,) = figure.axes
    (one,) = measured(records)
    copies, bus, algorithm = heights(axes)
    assert bus == pytest.approx([size.bus_bandwidth.value for size in one.sizes])
    assert algorithm == pytest.approx([size.algorithm_bandwidth.value for size in one.sizes])
    assert np.array(bus) / algorithm == pytest.approx(1.5)
    assert copies == pytest.approx([10e9] * len(SIZES))
    assert words(axes) == {"copies", "gloo busbw", "gloo algbw"}
    assert "solid: busbw, dotted: algbw" in caption(figure)


def test_where_both_are_equal_one_line_is_both() -> None:
    figure = bandwidth(sample(2), SOURCE)
    assert len(heights(figure.axes[0])) == 2  # and the copies
    assert words(figure.axes[0]) == {"copies", "gloo"}
    assert "busbw and algbw of all_reduce ×2 are equal" in caption(figure)


def test_collectives_that_are_no_line_are_counted() -> None:
    def once(**changes: object) -> CollectiveRecord:
        return collective_record(collective_spec(**changes), lambda size: 1e-4 + size / 1e9)

    others = [
        once(group_size=8, sizes_bytes=(1024,)),
        once(group_size=1),
        failed_record(collective_spec(backend="nccl"), Status.SKIPPED, "no GPU"),
    ]
    said = caption(bandwidth([*sample(2), *others], SOURCE))
    assert "1 collective of one size left out" in said
    assert "1 collective of one rank, which have no bandwidth, left out" in said
    assert "1 collective that did not complete left out" in said
    assert "by all ranks at once, without interval · " in said


def test_every_point_is_inside_its_panel() -> None:
    for axes in bandwidth(sample(2, 4), SOURCE).axes:
        low, high = axes.get_ylim()
        assert all(low <= y <= high for ys in heights(axes) for y in ys)


def test_without_a_curve_there_is_nothing_to_draw() -> None:
    failed = failed_record(collective_spec(backend="nccl"), Status.SKIPPED, "no GPU")
    with pytest.raises(NothingToDraw, match="two sizes or more"):
        bandwidth([failed], SOURCE)
