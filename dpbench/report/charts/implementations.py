"""Implementation against implementation: throughputs as ratios to a reference of the same case."""

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
from dpbench.analysis.estimate import FEWEST_PAIRS, Estimate, LogMean
from dpbench.analysis.scaling import BASELINE, Speed, gain
from dpbench.messages import one_line
from dpbench.report.charts import bars
from dpbench.report.charts.bars import case_title, cases, cases_that_fit
from dpbench.report.charts.curves import CUT_OFF, FARTHEST_END, MARGIN
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import INK, MUTED, SeriesStyle, finish, plain_number, series_styles
from dpbench.report.values import write
from dpbench.specs.traits import INDEPENDENT, SINGLE

MOST_ROWS = 30
REFERENCES = ("torch-ddp", "torch-ddp-static", "torch-dp", SINGLE)
BACKENDS_FIRST = ("nccl", "gloo")
"""Preferred backends of the reference: the first of these that a case has."""
LEAST_SPAN, WIDEST_LINEAR = 0.05, 4.0
"""How far the axis goes to both sides of 1 at the least, and up to which ratio it is linear."""
SPEED_COLUMN = 86.0
"""Position of the column, in points from the panel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Side:
    row: ConfigurationSummary
    speed: Speed


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    row: ConfigurationSummary
    ratio: Estimate

    @property
    def unit(self) -> str:
        assert self.row.throughput is not None
        return self.row.throughput.unit


def implementations(source: ChartSource) -> Figure:
    """A block a group size and batch size: its reference, and a dumbbell to each other one."""
    found = [case for case in cases(_sides(source)) if len(case) > 1]
    several = [alike for case in found if len(alike := _of_one_environment(case)) > 1]
    apart = sum(map(len, found)) - sum(map(len, several))
    if found and not several:
        raise NothingToDraw("no two implementations were measured in the same environment")
    if not several:
        raise NothingToDraw("no two implementations have a throughput at the same sizes")
    shown = cases_that_fit(several, MOST_ROWS, len)
    blocks = [_pairs(case) for case in shown]
    pairs = [pair for block in blocks for pair in block]
    styles = series_styles([(side.row.implementation, side.row.backend) for side in _sides(source)])
    height = bars.height_of(blocks)
    figure, axes = bars.figure_of(height)
    low, high = _limits(axes, pairs)
    named = []
    for (place, rows), case in zip(bars.row_positions(blocks), shown, strict=True):
        bars.write_heading(axes, place, case_title(case))
        axes.plot([1, 1], [rows[0][0], rows[-1][0]], color=MUTED, linewidth=1.0, zorder=1)
        for at, pair in rows:
            _dumbbell(axes, at, pair, styles[pair.row.implementation, pair.row.backend])
            named.append((at, one_line(pair.row.series)))
    bars.write_beside(axes, 0, "ratio")
    bars.write_beside(axes, 0, f"throughput ({pairs[0].unit})", points=SPEED_COLUMN)
    bars.finish_rows(axes, named, height)
    axes.set_xlabel("throughput ÷ that of the reference")
    ratios = [pair.ratio for pair in pairs]
    remarks = _remarks(ratios, low, high)
    if apart:
        remarks.append(f"{units.counted(apart, 'configuration')} of other environments left out")
    if any(row.implementation == INDEPENDENT for row in source.rows):
        remarks.append(f"{INDEPENDENT} is left out, because it synchronizes nothing")
    if len(pairs) < (every := sum(len(case) for case in several)):
        remarks.append(f"{len(pairs)} of {every:,} configurations")
    return finish(
        figure,
        title=CHARTS["implementations"].title,
        caption=source.caption(ratios, remarks),
    )


def _sides(source: ChartSource) -> list[_Side]:
    """Rows with a throughput; of a published one its value is all there is."""
    groups = by_configuration(source.records)
    sides = []
    for row in source.rows:
        if row.throughput is None or row.implementation == INDEPENDENT:
            continue
        trial = row.configuration
        usable = [] if trial is None else usable_repetitions(groups.get(trial, []))
        speed = Speed.of(usable) if usable else _published(row.throughput)
        sides.append(_Side(row=row, speed=speed))
    return sides


def _published(throughput: Estimate) -> Speed:
    return Speed(
        throughput=LogMean.of_single(throughput.value), by_repetition={}, environments=frozenset()
    )


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


def _pairs(case: Sequence[_Side]) -> list[_Pair]:
    """The reference first, which is 1 by definition."""
    reference = _reference(case)
    others = [side for side in case if side is not reference]
    return [
        _Pair(row=reference.row, ratio=BASELINE),
        *(_Pair(row=side.row, ratio=gain(reference.speed, side.speed)) for side in others),
    ]


def _limits(axes: Axes, pairs: Sequence[_Pair]) -> tuple[float, float]:
    """Makes room for all ratios, for 1, and for intervals unless they are very wide."""
    ends = [
        end
        for pair in pairs
        for value in [pair.ratio.value]
        for end in (
            max(pair.ratio.low or value, value / FARTHEST_END),
            min(pair.ratio.high or value, value * FARTHEST_END),
        )
    ]
    low, high = min(1 - LEAST_SPAN, *ends), max(1 + LEAST_SPAN, *ends)
    if high > WIDEST_LINEAR * low:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 1.5, 2, 3, 5, 7)))
        axes.xaxis.set_minor_locator(NullLocator())
        low, high = low / MARGIN, high * MARGIN
    else:
        margin = (high - low) * (MARGIN - 1)
        low, high = low - margin, high + margin
    axes.set_xlim(low, high)
    axes.xaxis.set_major_formatter(FuncFormatter(plain_number))
    return low, high


def _dumbbell(axes: Axes, place: float, pair: _Pair, style: SeriesStyle) -> None:
    """Draws a line from the reference to the other; hollow if they are statistically tied."""
    ratio = pair.ratio
    axes.plot([1, ratio.value], [place] * 2, color=style.color, linewidth=3.5, alpha=0.4)
    axes.plot(1, place, marker="o", color=INK, markersize=3.5)
    same = ratio.basis != "baseline" and not _differs(ratio)
    axes.errorbar(
        ratio.value,
        place,
        xerr=[[side] for side in ratio.sides],
        color=style.color,
        marker=style.marker,
        markersize=6,
        markerfacecolor="white" if same else style.color,
        elinewidth=1.0,
        zorder=3,
    )
    bars.write_beside(axes, place, write(ratio, "ratio"))
    bars.write_beside(axes, place, write(pair.row.throughput, "rate"), points=SPEED_COLUMN)


def _differs(ratio: Estimate) -> bool:
    """Whether the interval of the ratio excludes 1; False without an interval."""
    return ratio.interval is not None and not ratio.contains(1)


def _remarks(ratios: Sequence[Estimate], low: float, high: float) -> list[str]:
    remarks = []
    if any(ratio.basis != "baseline" and not _differs(ratio) for ratio in ratios):
        remarks.append(
            "hollow: no difference is shown, as the interval contains 1 or there is none"
        )
    if any(r.basis == "repetitions" and r.sample_size >= FEWEST_PAIRS for r in ratios):
        remarks.append("repetitions are compared pass by pass where both sides have the same ones")
    if any(r.interval and (r.interval[0] < low or r.interval[1] > high) for r in ratios):
        remarks.append(CUT_OFF)
    return remarks
