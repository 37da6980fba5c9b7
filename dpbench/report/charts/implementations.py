"""Throughputs of implementations as ratios to a reference at the same sizes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, NullLocator

from dpbench import units
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.fields import NOISY
from dpbench.analysis.scaling import BASELINE, Speed, gain
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.rows import (
    Measured,
    case_title,
    cases,
    cases_that_fit,
    measured_rows,
)
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    MUTED,
    draw_points,
    finish,
    series_styles,
    stacked,
    write_beside,
)
from dpbench.report.numbers import plus_minus
from dpbench.specs.traits import INDEPENDENT, SINGLE

REFERENCES = ("torch-ddp", "torch-ddp-static", "torch-dp", SINGLE)
FARTHEST = 4.0
"""Factor beyond which an interval is cut off at the edge of the panel."""


def implementations(source: ChartSource) -> Figure:
    """One panel per group size and batch size; the reference is torch's own where measured."""
    sides = [
        one
        for one in measured_rows(source)
        if one.row.throughput and one.row.implementation != INDEPENDENT
    ]
    speeds = {one: _speed(one) for one in sides}
    found = [case for case in cases(sides) if len(case) > 1]
    several: list[tuple[Measured, ...]] = []
    ratios: dict[Measured, Estimate] = {}
    for case in found:
        reference = _reference(case)
        where = speeds[reference].environments
        alike = tuple(one for one in case if speeds[one].environments == where)
        ratios |= {one: gain(speeds[reference], speeds[one]) for one in alike if one != reference}
        if len(alike) > 1:
            several.append(alike)
    if not several:
        where_words = "in the same environment" if found else "at the same sizes"
        raise NothingToDraw(f"no two implementations have a throughput {where_words}")
    stated = {one: ratio for one, ratio in ratios.items() if not ratio.is_too_noisy}
    if not stated:
        raise NothingToDraw("every ratio of two implementations is too noisy to state")
    shown = cases_that_fit([case for case in several if any(one in stated for one in case)])
    styles = series_styles([one.series for one in sides])
    figure, axes = stacked([len(case) for case in shown])
    for axis, case in zip(axes, shown, strict=True):
        axis.axvline(1, color=MUTED, linewidth=1.0, zorder=1)
        axis.set_title(case_title(case), pad=4)
        axis.set_xlabel("throughput ÷ throughput of the reference")
        axis.set_yticks(range(len(case)), [one.name for one in case])
        for place, one in enumerate(case):
            is_reference = one not in ratios
            ratio = BASELINE if is_reference else ratios[one]
            words = NOISY if ratio.is_too_noisy else f"{plus_minus(ratio)} ×"
            write_beside(axis, place, "reference" if is_reference else words)
            if ratio.is_too_noisy:
                continue
            is_tied = not is_reference and (ratio.interval is None or ratio.contains(1))
            color = styles[one.series]["color"]
            draw_points(
                axis,
                [(place, ratio, f"{one.name}: {words} the reference")],
                along="x",
                color=color,
                marker=styles[one.series]["marker"],
                markersize=6,
                markerfacecolor="white" if is_tied else color,
            )
    values = [stated[one] for case in shown for one in case if one in stated]
    _share_limits(axes, values)
    remarks = ["hollow: tied with the reference (the interval contains 1 or is missing)"]
    if any(row.implementation == INDEPENDENT for row in source.rows):
        remarks.append(f"{INDEPENDENT} is not shown: its replicas do not synchronize")
    if (drawn := sum(map(len, shown))) < (every := sum(map(len, found))):
        remarks.append(f"{drawn} of {units.counted(every, 'configuration')}")
    title = CHARTS["implementations"].title
    return finish(figure, title=title, caption=source.caption(values, remarks))


def _speed(one: Measured) -> Speed:
    """The speed of every repetition; of a published row its value is all there is."""
    if one.records:
        return Speed.of(one.records)
    assert one.row.throughput is not None
    return Speed(
        throughput=LogMean.of_single(one.row.throughput.value),
        by_repetition={},
        environments=frozenset(),
    )


def _reference(case: Sequence[Measured]) -> Measured:
    """The first row of torch's own implementation; the first of all if none was measured."""
    names = [one.row.implementation for one in case]
    first = next((name for name in REFERENCES if name in names), names[0])
    return case[names.index(first)]


def _share_limits(axes: Sequence[Axes], ratios: Sequence[Estimate]) -> None:
    """One logarithmic axis for all panels, with room for all ratios and most of the intervals."""
    lows = [max(ratio.ends[0], ratio.value / FARTHEST) for ratio in ratios]
    highs = [min(ratio.ends[1], ratio.value * FARTHEST) for ratio in ratios]
    low, high = min(0.95, *lows) / 1.03, max(1.05, *highs) * 1.03
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xlim(low, high)
        if high > 2.5 * low:
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7), numticks=12))
        else:
            axis.xaxis.set_major_locator(MultipleLocator(0.05 if high < 1.3 * low else 0.1))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
