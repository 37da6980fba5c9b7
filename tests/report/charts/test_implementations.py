"""Dumbbells: ratios to the reference of the same sizes, paired where passes are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from dpbench.analysis.published import from_csv
from dpbench.records.trial import TrialRecord
from dpbench.report.charts.implementations import implementations
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.values import write
from tests.analysis.builders import run, trial
from tests.report.charts.pictured import figure, sweep
from tests.report.charts.sources import caption, source

PUBLISHED = Path(__file__).parents[3] / "results" / "published" / "torch_ddp_rtx3090.csv"


def passes(implementation: str, *speeds: float, backend: str = "gloo") -> list[TrialRecord]:
    return [
        run(trial(implementation, backend, 2, repetition=number), speed)
        for number, speed in enumerate(speeds)
    ]


def bars(axes: Axes) -> dict[str, tuple[float, float, float]]:
    """Low end, ratio and high end by name."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    found = []
    for one in axes.containers:
        line, _, (spans,) = one.lines
        (low, _), (high, _) = spans.get_segments()[0]
        found.append((float(low), float(line.get_xdata()[0]), float(high)))
    return dict(zip(names, found, strict=True))


def test_a_pass_that_slows_both_sides_leaves_their_ratio_alone() -> None:
    """Speeds vary by a factor of two from pass to pass; each ratio is 1.25, without a doubt."""
    speeds = (100.0, 200.0, 150.0, 120.0, 180.0)
    records = [*passes("torch-ddp", *speeds), *passes("ddp", *(1.25 * s for s in speeds))]
    (axes,) = implementations(source(records)).axes
    assert bars(axes)["torch-ddp/gloo"] == pytest.approx((1, 1, 1))
    assert bars(axes)["ddp/gloo"] == pytest.approx((1.25, 1.25, 1.25))


def test_few_passes_are_not_paired_and_no_difference_is_hollow() -> None:
    """Means of logarithms differ by ln 1.25; Welch's interval over two of each contains 1."""
    records = [*passes("torch-ddp", 100, 200), *passes("ddp", 125, 250)]
    chart = implementations(source(records))
    (axes,) = chart.axes
    low, ratio, high = bars(axes)["ddp/gloo"]
    assert ratio == pytest.approx(1.25)
    assert low < 1 < high
    assert axes.containers[1].lines[0].get_markerfacecolor() == "white"
    assert axes.containers[0].lines[0].get_markerfacecolor() != "white"
    assert "hollow: no difference is shown" in caption(chart)


def test_single_runs_are_hollow_as_nothing_tells_them_apart() -> None:
    chart = implementations(source([*passes("torch-ddp", 100), *passes("ddp", 200)]))
    (axes,) = chart.axes
    assert axes.containers[1].lines[0].get_markerfacecolor() == "white"
    assert "the interval contains 1 or there is none" in caption(chart)


def test_what_ran_elsewhere_is_not_compared() -> None:
    here = [*passes("torch-ddp", 100, 101), *passes("ddp", 110, 111)]
    there = [replace(one, environment_id="e1") for one in passes("dp", 500, 501)]
    chart = implementations(source([*here, *there]))
    assert [*bars(chart.axes[0])] == ["torch-ddp/gloo", "ddp/gloo"]
    said = caption(chart)
    assert "1 configuration of other environments left out" in said
    with pytest.raises(NothingToDraw, match="in the same environment"):
        implementations(source([*here[:2], *there]))


def test_torchs_own_on_the_backend_of_gpus_is_the_reference() -> None:
    records = [
        *passes("ddp", 100, backend="nccl"),
        *passes("torch-ddp", 100),
        *passes("torch-ddp", 200, backend="nccl"),
    ]
    (axes,) = implementations(source(records)).axes
    ratios = {name: ratio for name, (_, ratio, _) in bars(axes).items()}
    assert list(ratios) == ["torch-ddp/nccl", "ddp/nccl", "torch-ddp/gloo"]
    assert ratios == pytest.approx({"torch-ddp/nccl": 1, "ddp/nccl": 0.5, "torch-ddp/gloo": 0.5})


def test_throughputs_are_written_as_in_the_table() -> None:
    written = [text.get_text() for text in figure("implementations").axes[0].texts]
    rows = [row for row in sweep().rows if row.throughput is not None]
    assert len(rows) > 20
    for row in rows:
        assert (write(row.throughput, "rate") in written) == (row.implementation != "independent")
    said = caption(figure("implementations"))
    assert "independent is left out" in said


def test_published_backends_stand_beside_each_other() -> None:
    rows = from_csv(PUBLISHED)
    chart = implementations(ChartSource(rows=rows, environments={}, name="published"))
    (axes,) = chart.axes
    two = {row.backend: row.throughput for row in rows if row.label.endswith("×2, batch 256")}
    assert two["gloo"] is not None
    assert two["nccl"] is not None
    ratio = two["gloo"].value / two["nccl"].value
    assert any(one.lines[0].get_xdata()[0] == pytest.approx(ratio) for one in axes.containers)
    assert "single values (n = 1)" in caption(chart)


def test_one_implementation_has_nothing_beside_it() -> None:
    with pytest.raises(NothingToDraw, match="no two implementations"):
        implementations(source(passes("ddp", 100, 110)))
