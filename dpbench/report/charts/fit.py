"""Efficiency as measured and as a fitted law has it, with the band of its predictions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.laws.band import CONFIDENCE
from dpbench.analysis.laws.study import Study
from dpbench.analysis.provenance import FARTHEST
from dpbench.messages import one_line
from dpbench.report.charts.curves import MOST_PANELS, Label, label_lines, number_axis
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import BAND_OPACITY, BLUE, MUTED, VERMILION, finish, panels

TITLE_WIDTH = 44


def fit(studies: Sequence[Study], source: ChartSource) -> Figure:
    """A panel for each series; of `source` place and name."""
    shown = _shown(studies)
    if not shown:
        raise NothingToDraw("no series could be fitted")
    figure, axes = panels(len(shown), share_y=True)
    for axis, one in zip(axes, shown, strict=True):
        _panel(axis, one)
    axes[0].set_ylim(0, max(105.0, axes[0].get_ylim()[1]))
    axes[0].set_ylabel("efficiency (% of linear scaling)")
    remarks = [
        "full points: measured",
        f"band: {units.fixed_percent(CONFIDENCE)} of predictions, ending where they are refused",
    ]
    if len(shown) < len(studies):
        remarks.append(f"{len(shown)} of {len(studies)} series")
    return finish(
        figure, title=CHARTS["fit"].title, caption=source.caption(_estimates(shown), remarks)
    )


def _estimates(studies: Sequence[Study]) -> list[Estimate]:
    """Estimates of measured points except the baseline."""
    found = [row.efficiency for one in studies for row in one.measured if row.efficiency]
    return [estimate for estimate in found if estimate.basis != "baseline"]


def _shown(studies: Sequence[Study]) -> list[Study]:
    """The studies that fit, those with withheld points first; in their order."""

    def is_untested(place: int) -> bool:
        return not any(row.withheld for row in studies[place].predicted)

    chosen = sorted(range(len(studies)), key=is_untested)[:MOST_PANELS]
    return [studies[place] for place in sorted(chosen)]


def _panel(axis: Axes, one: Study) -> None:
    axis.axhline(100, color=MUTED, linewidth=1.0, zorder=1)
    sizes = sorted({r.prediction.group_size for r in (*one.measured, *one.predicted)})
    names: list[Label] = [(*_law(axis, one, sizes), "law", BLUE), *_withheld(axis, one)]
    _measured(axis, one)
    for row in one.predicted:
        if row.prediction.kind == "refused":
            _refused(axis, row.prediction.group_size)
    label_lines(axis, names)
    number_axis(axis, sizes, "group size (replicas)", log=True)
    axis.set_title(textwrap.fill(one_line(one.series.label), TITLE_WIDTH), fontsize=8.5)


def _measured(axis: Axes, one: Study) -> None:
    found = [(row.prediction.group_size, row.efficiency) for row in one.measured if row.efficiency]
    sides = zip(*(e.sides for _, e in found), strict=True)
    axis.errorbar(
        [n for n, _ in found],
        [100 * e.value for _, e in found],
        yerr=[[100 * reach for reach in side] for side in sides],
        color=BLUE,
        linestyle="none",
        marker="o",
        elinewidth=1.0,
    )


def _withheld(axis: Axes, one: Study) -> list[Label]:
    """Points that the fit did not see; gives the name of the last one."""
    found = [
        (row.prediction.group_size, 100 * row.withheld / _linear(one, row.prediction.group_size))
        for row in one.predicted
        if row.withheld
    ]
    axis.plot(
        [n for n, _ in found],
        [y for _, y in found],
        color=VERMILION,
        linestyle="none",
        marker="D",
        markerfacecolor="white",
    )
    return [(*point, "withheld", VERMILION) for point in found[-1:]]


def _refused(axis: Axes, group_size: int) -> None:
    axis.axvline(group_size, color=MUTED, linestyle=":", linewidth=1.0)
    axis.annotate(
        "refused",
        (group_size, 0),
        xytext=(-2, 4),
        textcoords="offset points",
        rotation=90,
        ha="right",
        va="bottom",
        color=MUTED,
        fontsize=7.5,
    )


def _law(axis: Axes, one: Study, sizes: Sequence[int]) -> tuple[float, float]:
    """The curve and its band at every whole size that it speaks for, as far as is shown.

    Gives where the curve ends.
    """
    smallest, largest = one.fit.series.group_sizes[0], one.fit.series.group_sizes[-1]
    end = min(FARTHEST * largest, max(sizes))
    spread = np.geomspace(smallest, end, 60).round().astype(int).tolist()
    grid = [n for n in sorted({*spread, *one.fit.reach.measured}) if one.fit.refusal(n) is None]
    law = [one.series.items(n) / one.fit.seconds(n) for n in grid]
    heights = [100 * x / _linear(one, n) for n, x in zip(grid, law, strict=True)]
    axis.plot(grid, heights, color=BLUE)
    found = [one.fit.predict(n).throughput for n in grid]
    # At measured sizes nothing is predicted: there the band closes on the law.
    ends = [
        e.interval if e is not None and e.interval is not None and e.basis == "model" else (x, x)
        for e, x in zip(found, law, strict=True)
    ]
    axis.fill_between(
        grid,
        [100 * low / _linear(one, n) for n, (low, _) in zip(grid, ends, strict=True)],
        [100 * high / _linear(one, n) for n, (_, high) in zip(grid, ends, strict=True)],
        color=BLUE,
        alpha=BAND_OPACITY,
        linewidth=0,
    )
    return grid[-1], heights[-1]


def _linear(one: Study, group_size: float) -> float:
    """Throughput if scaling from the baseline were linear."""
    growth = group_size / one.baseline.group_size
    return one.series.throughput(one.baseline).value * growth
