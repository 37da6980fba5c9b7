"""Efficiency as measured and as a fitted law has it, with the band of its predictions."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dpbench.analysis.laws.band import CONFIDENCE
from dpbench.analysis.laws.study import Study
from dpbench.analysis.provenance import FARTHEST
from dpbench.report.charts.curves import MOST_PANELS, number_axis
from dpbench.report.charts.files import PIXELS_PER_INCH, write_whole
from dpbench.report.charts.style import BLUE, GREY, VERMILION, finish, house_style, panels

SCALING_FIT = "scaling_fit"
TITLE_WIDTH = 44


def scaling_fit(studies: Sequence[Study], paths: Sequence[Path], *, source: str) -> None:
    """Draws a panel for each series, as PNG or SVG by the suffixes; raises OSError."""
    with house_style():
        figure = _figure(studies, source)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, partial(_save, figure, path.suffix[1:].lower()))


def _save(figure: Figure, image: str, path: Path) -> None:
    metadata = {"Date": None} if image == "svg" else {}
    with warnings.catch_warnings():
        # A label may have letters that the font lacks: they show as boxes, which says enough.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure.savefig(path, format=image, dpi=PIXELS_PER_INCH, metadata=metadata)


def _figure(studies: Sequence[Study], source: str) -> Figure:
    shown = _shown(studies)
    figure, axes = panels(len(shown), share_y=True)
    for axis, one in zip(axes, shown, strict=True):
        _panel(axis, one)
    axes[0].set_ylim(0, max(105.0, axes[0].get_ylim()[1]))
    axes[0].set_ylabel("efficiency (% of linear scaling)")
    figure.legend(handles=_key(shown), loc="outside right upper")
    left_out = len(studies) - len(shown)
    more = f" · {len(shown)} of {len(studies)} series" if left_out else ""
    caption = (
        f"band: {100 * CONFIDENCE:.0f} % of predictions, ending where they are refused; bars: "
        f"95 % interval of measured points that have one{more} · {source}"
    )
    return finish(figure, title="Fitted scaling laws", caption=caption)


def _shown(studies: Sequence[Study]) -> list[Study]:
    """As many as there is room for, those with withheld points first; in their order."""

    def is_untested(place: int) -> bool:
        return not any(row.withheld for row in studies[place].predicted)

    chosen = sorted(range(len(studies)), key=is_untested)[:MOST_PANELS]
    return [studies[place] for place in sorted(chosen)]


def _panel(axis: Axes, one: Study) -> None:
    axis.axhline(100, color=GREY, linewidth=1.0, zorder=1)
    sizes = sorted({r.prediction.group_size for r in (*one.measured, *one.predicted)})
    _law(axis, one, sizes)
    measured = [
        (row.prediction.group_size, row.efficiency) for row in one.measured if row.efficiency
    ]
    ends = [(e.interval or (e.value, e.value)) for _, e in measured]
    axis.errorbar(
        [n for n, _ in measured],
        [100 * e.value for _, e in measured],
        yerr=[
            [100 * (e.value - low) for (_, e), (low, _) in zip(measured, ends, strict=True)],
            [100 * (high - e.value) for (_, e), (_, high) in zip(measured, ends, strict=True)],
        ],
        color=BLUE,
        linestyle="none",
        marker="o",
        elinewidth=1.0,
        capsize=2.5,
    )
    withheld = [(row.prediction.group_size, row.withheld) for row in one.predicted if row.withheld]
    axis.plot(
        [n for n, _ in withheld],
        [100 * speed / _linear(one, n) for n, speed in withheld],
        color=VERMILION,
        linestyle="none",
        marker="D",
        markerfacecolor="white",
    )
    for row in one.predicted:
        if row.prediction.kind == "refused":
            axis.axvline(row.prediction.group_size, color=GREY, linestyle=":", linewidth=1.0)
    number_axis(axis, sizes, "group size (replicas)", log=True)
    axis.set_title(textwrap.fill(one.series.label, TITLE_WIDTH), fontsize=8.5)


def _law(axis: Axes, one: Study, sizes: Sequence[int]) -> None:
    """The curve and its band at every whole size that it speaks for, as far as is shown."""
    smallest, largest = one.fit.series.group_sizes[0], one.fit.series.group_sizes[-1]
    end = min(FARTHEST * largest, max(sizes))
    spread = np.geomspace(smallest, end, 60).round().astype(int).tolist()
    reach = one.fit.reach
    grid = [n for n in sorted({*spread, *reach.measured}) if reach.refusal(n) is None]
    law = [one.series.items(n) / one.fit.seconds(n) for n in grid]
    axis.plot(grid, [100 * x / _linear(one, n) for n, x in zip(grid, law, strict=True)], color=BLUE)
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
        alpha=0.18,
        linewidth=0,
    )


def _linear(one: Study, group_size: float) -> float:
    """Throughput if scaling from the baseline were linear."""
    growth = group_size / one.baseline.group_size
    return one.series.throughput(one.baseline).value * growth


def _key(studies: Sequence[Study]) -> list[Line2D | Patch]:
    key: list[Line2D | Patch] = [
        Line2D([], [], color=BLUE, marker="o", linestyle="none", label="measured"),
        Line2D([], [], color=BLUE, label="fitted law"),
        Patch(color=BLUE, alpha=0.18, linewidth=0, label="band"),
    ]
    rows = [row for one in studies for row in one.predicted]
    if any(row.withheld for row in rows):
        key.append(
            Line2D(
                [],
                [],
                color=VERMILION,
                marker="D",
                markerfacecolor="white",
                linestyle="none",
                label="withheld",
            )
        )
    if any(row.prediction.kind == "refused" for row in rows):
        key.append(Line2D([], [], color=GREY, linestyle=":", linewidth=1.0, label="refused"))
    return key
