"""Throughputs of implementations as ratios to a reference at the same sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from dpbench import units
from dpbench.analysis.configuration import (
    ConfigurationSummary,
    by_configuration,
    usable_repetitions,
)
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.scaling import BASELINE, Speed, gain
from dpbench.messages import one_line
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.rows import case_title, cases, cases_that_fit
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    MUTED,
    add_tip,
    finish,
    series_styles,
    stacked,
    write_beside,
)
from dpbench.report.values import write
from dpbench.specs.traits import INDEPENDENT, SINGLE

REFERENCES = ("torch-ddp", "torch-ddp-static", "torch-dp", SINGLE)
BACKENDS_FIRST = ("nccl", "gloo")
"""Preferred backends of the reference: the first of these that a case has."""
FARTHEST = 4.0
"""Factor beyond which an interval is cut off at the edge of the panel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Side:
    row: ConfigurationSummary
    speed: Speed


def implementations(source: ChartSource) -> Figure:
    """One panel per group size and batch size; the reference is torch's own where measured."""
    sides = _sides(source)
    found = [case for case in cases(sides) if len(case) > 1]
    several = [alike for case in found if len(alike := _of_one_environment(case)) > 1]
    if found and not several:
        raise NothingToDraw("no two implementations were measured in the same environment")
    if not several:
        raise NothingToDraw("no two implementations have a throughput at the same sizes")
    shown = cases_that_fit(several)
    styles = series_styles([(side.row.implementation, side.row.backend) for side in sides])
    figure, axes = stacked([len(case) for case in shown])
    ratios: list[Estimate] = []
    for axis, case in zip(axes, shown, strict=True):
        reference = _reference(case)
        axis.axvline(1, color=MUTED, linewidth=1.0, zorder=1)
        axis.set_title(case_title(case), pad=4)
        axis.set_yticks(range(len(case)), [one_line(side.row.series) for side in case])
        for place, side in enumerate(case):
            ratio = BASELINE if side is reference else gain(reference.speed, side.speed)
            ratios.append(ratio)
            style = styles[side.row.implementation, side.row.backend]
            is_tied = side is not reference and (ratio.interval is None or ratio.contains(1))
            axis.errorbar(
                ratio.value,
                place,
                xerr=[[length] for length in ratio.sides],
                color=style.color,
                marker=style.marker,
                markersize=6,
                markerfacecolor="white" if is_tied else style.color,
            )
            tip = f"{one_line(side.row.series)}: {write(ratio, 'ratio')} × the reference"
            add_tip(axis, ratio.value, place, tip)
            words = "reference" if side is reference else f"{write(ratio, 'ratio')} ×"
            write_beside(axis, place, words)
            write_beside(axis, place, f"{write(side.row.throughput, 'rate')}", points=86)
    _share_limits(axes, ratios)
    unit = next(s.row.throughput.unit for s in shown[0] if s.row.throughput)
    axes[-1].set_xlabel(f"throughput ÷ throughput of the reference; right: ratio, {unit}")
    remarks = ["hollow: tied with the reference (the interval contains 1 or is missing)"]
    if any(row.implementation == INDEPENDENT for row in source.rows):
        remarks.append(f"without {INDEPENDENT}, which synchronizes nothing")
    if apart := sum(map(len, found)) - sum(map(len, several)):
        remarks.append(f"without {units.counted(apart, 'configuration')} of other environments")
    if (drawn := sum(map(len, shown))) < (every := sum(map(len, several))):
        remarks.append(f"{drawn} of {every:,} configurations")
    title = CHARTS["implementations"].title
    return finish(figure, title=title, caption=source.caption(ratios, remarks))


def _sides(source: ChartSource) -> list[_Side]:
    """Rows with a throughput; of a published one its value is all there is."""
    groups = by_configuration(source.records)
    sides = []
    for row in source.rows:
        if row.throughput is None or row.implementation == INDEPENDENT:
            continue
        trial = row.configuration
        usable = [] if trial is None else usable_repetitions(groups.get(trial, []))
        published = Speed(
            throughput=LogMean.of_single(row.throughput.value),
            by_repetition={},
            environments=frozenset(),
        )
        sides.append(_Side(row=row, speed=Speed.of(usable) if usable else published))
    return sides


def _reference(case: Sequence[_Side]) -> _Side:
    """The reference of the case: torch's own implementation if measured."""

    def rank(side: _Side) -> tuple[int, int]:
        name, backend = side.row.implementation, side.row.backend or ""
        return (
            REFERENCES.index(name) if name in REFERENCES else len(REFERENCES),
            BACKENDS_FIRST.index(backend) if backend in BACKENDS_FIRST else len(BACKENDS_FIRST),
        )

    return min(case, key=rank)


def _of_one_environment(case: Sequence[_Side]) -> tuple[_Side, ...]:
    """Rows measured in the reference's environment: only these are compared with it."""
    where = _reference(case).speed.environments
    return tuple(side for side in case if side.speed.environments == where)


def _share_limits(axes: Sequence[Axes], ratios: Sequence[Estimate]) -> None:
    """One logarithmic axis for all panels, with room for all ratios and most of the intervals."""
    lows = [max(ratio.ends[0], ratio.value / FARTHEST) for ratio in ratios]
    highs = [min(ratio.ends[1], ratio.value * FARTHEST) for ratio in ratios]
    low, high = min(0.95, *lows) / 1.03, max(1.05, *highs) * 1.03
    steps = (1, 1.5, 2, 3, 5, 7) if high > 2 * low else (1, *(k / 20 for k in range(21, 200)))
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xlim(low, high)
        axis.xaxis.set_major_locator(LogLocator(base=10, subs=steps, numticks=12))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
