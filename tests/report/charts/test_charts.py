"""What the charts show is what the table says: every value, every interval, and their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from dpbench.analysis.analyze import Analysis
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.rows import Row, published_rows
from dpbench.report.charts import figures
from dpbench.report.charts.kinds import CHARTS, NothingToDraw
from tests.analysis.builders import BACKENDS, run, trial, varied
from tests.report.charts.pictured import caption, collectives, figure, source, sweep

CURVES: dict[str, Callable[[Row], Estimate | None]] = {
    "throughput": lambda row: row.throughput,
    "speedup": lambda row: None if row.implementation == "single" else row.speedup,
    "efficiency": lambda row: None if row.implementation == "single" else row.efficiency,
}


def bars(axes: Axes) -> list[tuple[str, int, float, float, float]]:
    """Series, place, value and the ends of its interval, from the error bars of a panel."""
    drawn = []
    for container in axes.containers:
        line, _, (spans,) = container.lines
        name = str(container.get_label())
        points = zip(line.get_xdata(), line.get_ydata(), spans.get_segments(), strict=True)
        for x, y, span in points:
            drawn.append((name, round(float(x)), float(y), *map(float, span[:, 1])))
    return drawn


def ends(axes: Axes, along: int) -> list[tuple[float, float]]:
    """The ends of every error bar of a panel."""
    return [
        (float(span[:, along].min()), float(span[:, along].max()))
        for container in axes.containers
        for bar in container.lines[2]
        for span in bar.get_segments()
    ]


@pytest.mark.parametrize("kind", CURVES)
def test_points_and_bars_are_the_rows(kind: str) -> None:
    shown = []
    for axes in figure(kind).axes:
        batch_size = int(axes.get_title("left").rpartition(" ")[2])
        shown += [(batch_size, *bar) for bar in bars(axes)]
        assert axes.get_ylim()[1] > max(high for *_, high in bars(axes))
    expected = [
        (row.batch_size, row.series, (1, 2, 4).index(row.group_size), value.value, *value.ends)
        for row in sweep().rows
        if (value := CURVES[kind](row)) is not None
    ]
    assert len(expected) > 20
    for drawn, row in zip(sorted(shown), sorted(expected), strict=True):
        assert drawn[:3] == row[:3]
        assert drawn[3:] == pytest.approx(row[3:])


@pytest.mark.parametrize("kind", [*CURVES, "implementations"])
def test_a_value_that_the_table_does_not_state_is_left_out(kind: str) -> None:
    steady, wild = (1.0, 1.01, 1.02), (1.0, 5.0, 25.0)
    runs = [
        run(trial(name, group_size=size), 100.0 * size * factors[k], repetition=k)
        for name, factors in (("torch-ddp", steady), ("dp", steady), ("ddp", wild))
        for size in (1, 2, 4)
        for k in range(3)
    ]
    chart = CHARTS[kind].draw(source(runs))
    if kind == "throughput":
        assert "3 values left out: too noisy" in caption(chart)
    for axes in chart.axes:
        intervals = ends(axes, 0 if kind == "implementations" else 1)
        assert intervals
        assert all(high <= 3 * low for low, high in intervals)


@pytest.mark.parametrize("kind", CHARTS)
def test_every_chart_has_a_title_and_says_where_it_comes_from(kind: str) -> None:
    chart = figure(kind)
    assert chart.get_suptitle() == CHARTS[kind].title
    assert caption(chart).endswith("demo")
    if kind == "throughput":
        assert caption(chart).startswith("error bars: 95 % interval over n = 2–3 repetitions · ")
        runs = [run(trial(group_size=n), 100.0 * n) for n in (1, 2)]
        bars = CHARTS[kind].draw(source(runs))
        assert caption(bars).startswith("2 points without an error bar: n = 1")
        assert [bar.get_height() for bar in bars.axes[0].patches[:2]] == [100.0, 200.0]


@pytest.mark.parametrize("kind", CHARTS)
def test_no_part_of_a_chart_covers_another(kind: str) -> None:
    """From above: the title, the panels, the legend, the caption."""
    chart = figure(kind)
    chart.draw_without_rendering()
    *others, title = (text.get_window_extent() for text in chart.texts)
    tops, bottoms = [], []
    for axes in chart.axes:
        box = axes.get_tightbbox()
        assert box is not None
        tops.append(box.y1)
        bottoms.append(box.y0)
    lower = [legend.get_window_extent() for legend in chart.legends] + others
    assert title.y0 >= max(tops)
    for upper, below in zip([min(bottoms), *(box.y0 for box in lower)], lower, strict=False):
        assert upper >= below.y1
    assert min(box.y0 for box in lower) >= 0


def with_settings() -> Analysis:
    """Every row has a setting that is not the default, and one implementation has two labels."""
    names = ("single", "independent", "dp", "ddp", "torch-ddp", "fsdp2", "local-sgd", "replicate")
    specs = [
        varied(trial(name, BACKENDS.get(name, "gloo"), size), optimizer="adamw")
        for name in names
        for size in ((1,) if name == "single" else (1, 2, 4))
    ]
    bf16 = [varied(spec, dtype="bf16") for spec in specs if spec.implementation == "ddp"]
    speeds = enumerate([*specs, *bf16])
    return source([run(spec, 100.0 * spec.group_size - k) for k, spec in speeds])


def test_charts_know_rows_by_their_names_whatever_their_labels_say() -> None:
    rows = with_settings()
    assert all("adamw" in row.series for row in rows.rows)
    forest = CHARTS["implementations"].draw(rows)
    words = [text.get_text() for axes in forest.axes for text in axes.texts]
    names = [label.get_text() for axes in forest.axes for label in axes.get_yticklabels()]
    assert words[names.index("torch-ddp(adamw)/gloo")] == "reference"
    assert "independent(adamw)" not in names
    assert "independent is not shown" in caption(forest)
    (axes,) = CHARTS["throughput"].draw(rows).axes
    (linear,) = (line for line in axes.lines if str(line.get_label()).startswith("linear"))
    assert linear.get_ydata()[0] == pytest.approx(100.0)
    drawn = {str(bar.get_label()): bar.lines[0].get_linestyle() for bar in axes.containers}
    assert (drawn["single(adamw)"], drawn["ddp(adamw)/gloo"]) == ("None", "-")  # one size, two


def test_a_label_has_one_color_in_all_charts_of_an_analysis_and_is_not_cut() -> None:
    charts = [CHARTS[kind].draw(with_settings()) for kind in ("throughput", "speedup")]
    bars = [bar for chart in charts for bar in chart.axes[0].containers]
    looks = {(str(bar.get_label()), bar.lines[0].get_color()) for bar in bars}
    labels, colors = map(set, zip(*looks, strict=True))
    assert len(looks) == len(labels) == len(colors) == 9
    assert ("ddp(adamw)/gloo", figures.IMPLEMENTATION_COLORS["ddp"]) in looks
    charts[0].draw_without_rendering()
    assert charts[0].legends[0].get_window_extent().x1 <= charts[0].bbox.x1


def test_bars_have_the_pattern_of_their_backend_or_none_and_stand_side_by_side() -> None:
    names = (("dp", "threads"), ("ddp", "gloo"), ("ddp", "shm"), ("single", "none"))
    specs = [trial(*name, 1 if name[0] == "single" else 2) for name in names]
    shown = CHARTS["throughput"].draw(source([run(spec, 100.0) for spec in specs])).axes[0].patches
    assert [bar.get_hatch() for bar in shown] == ["", "", "..", ""]
    assert [bar.get_center()[0] for bar in shown] == pytest.approx([0.79, 1.0, 1.21, 0.0])


def test_a_published_line_starts_at_single_of_its_batch_size(tmp_path: Path) -> None:
    rows = ("single,1,32,100", "single,1,64,120", "ddp,2,32,180", "ddp,4,32,340")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(("implementation,group_size,batch_size,images_per_second", *rows)))
    chart = CHARTS["throughput"].draw(Analysis(name="", rows=published_rows(path)))
    ddp = [value for axes in chart.axes for name, _, value, *_ in bars(axes) if name == "ddp"]
    assert ddp == [100.0, 180.0, 340.0]


def test_implementations_are_compared_with_torch() -> None:
    first = figure("implementations").axes[0]
    assert first.get_title("left") == "4 replicas, batch size 32"
    assert figure("implementations").axes[-1].get_xlabel() == "× as fast as torch-ddp/gloo"
    names = [label.get_text() for label in first.get_yticklabels()]
    rows = {row.series: row for row in sweep().rows if (row.group_size, row.batch_size) == (4, 32)}
    reference = rows["torch-ddp/gloo"].throughput
    assert reference is not None
    for name, container in zip(names, first.containers, strict=True):
        value = float(np.asarray(container.lines[0].get_xdata())[0])
        throughput = rows[name].throughput
        assert throughput is not None
        assert value == pytest.approx(throughput.value / reference.value)


def test_shares_of_a_step_add_up() -> None:
    chart = figure("step-shares")
    assert "means over 5 steps per rank and repetition" in caption(chart)
    first = chart.axes[0]
    names = [label.get_text() for label in first.get_yticklabels()]
    widths = dict.fromkeys(names, 0.0)
    for patch in first.patches:
        widths[names[round(patch.get_y() + patch.get_height() / 2)]] += patch.get_width()
    assert widths == pytest.approx(dict.fromkeys(names, 100.0))
    assert "30 %" in {text.get_text() for text in first.texts}  # forward


def test_losses_end_where_their_window_ends() -> None:
    chart = figure("loss")
    (legend,) = chart.legends
    assert {"ddp/gloo ×4", "single ×1"} <= {text.get_text() for text in legend.get_texts()}
    ends = {str(line.get_label()): float(line.get_xdata()[-1]) for line in chart.axes[0].lines}
    assert ends["single ×1"] < ends["ddp/gloo ×4"]


def test_bandwidth_is_that_of_the_analysis() -> None:
    chart = figure("bandwidth")
    assert [axes.get_title("left") for axes in chart.axes] == ["all_reduce ×2", "all_reduce ×4"]
    rows = [row for row in collectives().rows if row.group_size == 4]
    shown = [value for _, _, value, _, _ in bars(chart.axes[1])]
    speeds = [row.bus_bytes_per_second.value for row in rows if row.bus_bytes_per_second]
    assert shown == pytest.approx(speeds)


@pytest.mark.parametrize("kind", CHARTS)
def test_of_nothing_there_is_nothing_to_draw(kind: str) -> None:
    with pytest.raises(NothingToDraw, match=r"^[^A-Z]"):
        CHARTS[kind].draw(Analysis(name="demo"))
