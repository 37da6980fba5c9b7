"""Throughputs of implementations as ratios to a reference at the same sizes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.estimate import Estimate, single_value
from dpbench.analysis.row import Row
from dpbench.analysis.scaling import UNITY, environments_of, speedup_of
from dpbench.messages import one_line
from dpbench.report.charts.rows import case_title, cases, cases_that_fit
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    MUTED,
    SeriesStyle,
    draw_points,
    series_of,
    series_styles,
    stacked,
    write_beside,
)
from dpbench.report.numbers import NOISY, plus_minus
from dpbench.specs.traits import INDEPENDENT, SINGLE

REFERENCES = ("torch-ddp", "torch-ddp-static", "torch-dp", SINGLE)


def implementations(source: ChartSource) -> Figure:
    """One panel per group size and batch size; the reference is torch's own where measured."""
    sides = [one for one in source.rows if one.throughput and one.implementation != INDEPENDENT]
    compared = [ratios for case in cases(sides) if len(ratios := _ratios(case)) > 1]
    if not compared:
        raise NothingToDraw(
            "no two implementations have a throughput at the same sizes in one environment"
        )
    known = [ratios for ratios in compared if any(map(_is_stated, ratios.values()))]
    if not known:
        raise NothingToDraw("every ratio of two implementations is too noisy to state")
    shown = cases_that_fit([tuple(ratios) for ratios in known])
    styles = series_styles([series_of(one) for one in sides])
    figure, axes = stacked([len(case) for case in shown])
    for axis, case, ratios in zip(axes, shown, known, strict=False):
        axis.axvline(1, color=MUTED, linewidth=1.0, zorder=1)
        axis.set_title(case_title(case), pad=4)
        axis.set_xlabel("throughput ÷ throughput of the reference")
        axis.set_yticks(range(len(case)), [one_line(one.series) for one in case])
        for place, one in enumerate(case):
            _draw(axis, place, one_line(one.series), ratios[one], styles[series_of(one)])
    pairs = [(one, ratios) for case, ratios in zip(shown, known, strict=False) for one in case]
    values = [ratios[one] for one, ratios in pairs if _is_stated(ratios[one])]
    for axis in axes:  # one scale for all, with room for the reference
        axis.set_xlim(
            min(0.95, *(ratio.ends[0] for ratio in values)) / 1.03,
            max(1.05, *(ratio.ends[1] for ratio in values)) * 1.03,
        )
    remarks = ["hollow: tied with the reference (the interval contains 1 or is missing)"]
    if any(row.implementation == INDEPENDENT for row in source.rows):
        remarks.append(f"{INDEPENDENT} is not shown: its replicas do not synchronize")
    if noisy := [case_title([*ratios]) for ratios in compared if ratios not in known]:
        remarks.append(f"not shown, as every ratio is too noisy: {'; '.join(noisy)}")
    if (drawn := sum(map(len, shown))) < (every := sum(map(len, compared))):
        remarks.append(f"{drawn} of {units.counted(every, 'configuration')}")
    return source.finish(figure, "implementations", values, remarks)


def _ratios(case: Sequence[Row]) -> dict[Row, Estimate]:
    """Speeds relative to the first row of torch's own implementation, or to the first of all; those
    that were measured in another environment are left out."""
    names = [one.implementation for one in case]
    first = next((name for name in REFERENCES if name in names), names[0])
    reference = case[names.index(first)]
    environments = environments_of(reference.records)
    return {
        one: UNITY if one is reference else _ratio(one, reference)
        for one in case
        if environments_of(one.records) == environments
    }


def _ratio(one: Row, reference: Row) -> Estimate:
    """The ratio of two speeds; of published rows the values are all there is."""
    if one.records and reference.records:
        return speedup_of(one.records, reference.records)
    speeds = [row.throughput for row in (one, reference) if row.throughput]
    return single_value(speeds[0].value / speeds[1].value, "×")


def _is_stated(ratio: Estimate) -> bool:
    """Whether it says more than that the reference is as fast as itself."""
    return ratio is not UNITY and not ratio.is_too_noisy


def _draw(axis: Axes, place: int, name: str, ratio: Estimate, style: SeriesStyle) -> None:
    """A point with its interval, and its number beside the panel."""
    words = "reference" if ratio is UNITY else f"{plus_minus(ratio)} ×"
    write_beside(axis, place, NOISY if ratio.is_too_noisy else words)
    if ratio.is_too_noisy:
        return
    color = style["color"]
    is_tied = ratio is not UNITY and (ratio.interval is None or ratio.contains(1))
    draw_points(
        axis,
        [(place, ratio, f"{name}: {words}")],
        along="x",
        color=color,
        marker=style["marker"],
        markersize=6,
        markerfacecolor="white" if is_tied else color,
    )
