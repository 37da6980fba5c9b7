"""How many times as fast implementations are as a reference at the same sizes."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.analysis.analyze import Analysis
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.rows import Row
from dpbench.analysis.scaling import UNITY
from dpbench.messages import one_line
from dpbench.report.charts.kinds import NothingToDraw
from dpbench.report.charts.style import (
    MUTED,
    Drawn,
    case_panels,
    cases,
    draw_points,
    series_styles,
    write_beside,
)
from dpbench.report.formatting import NOISY, plus_minus
from dpbench.specs.traits import INDEPENDENT, SINGLE

REFERENCES = ("torch-ddp", "torch-ddp-static", "torch-dp", SINGLE)


def implementations(analysis: Analysis) -> Drawn:
    """One panel per group size and batch size; the reference is torch's own where measured."""
    sides = [row for row in analysis.rows if row.throughput and row.implementation != INDEPENDENT]
    compared = (_ratios(case) for case in cases(sides) if len(case) > 1)
    ratios = {row: ratio for case in compared for row, ratio in case.items()}
    if not ratios:
        raise NothingToDraw("no two implementations have a throughput at the same sizes")
    if not any(map(_is_stated, ratios.values())):
        raise NothingToDraw("every ratio of two implementations is too noisy to state")
    styles = series_styles(sides)
    figure, panels, left_out = case_panels(ratios)
    shown = [ratios[row] for _, case in panels for row in case]
    values = [ratio for ratio in shown if _is_stated(ratio)]
    least = min([0.95, *(ratio.ends[0] for ratio in values)]) / 1.03
    most = max([1.05, *(ratio.ends[1] for ratio in values)]) * 1.03
    for axis, rows in panels:
        axis.axvline(1, color=MUTED, linewidth=1.0, zorder=1)
        axis.set_xlim(least, most)  # one scale for all, with room for the reference
        axis.set_xlabel("× as fast as the reference")
        axis.set_yticks(range(len(rows)), [one_line(row.series) for row in rows])
        for place, row in enumerate(rows):
            ratio, style = ratios[row], styles[row.series]
            words = "reference" if ratio is UNITY else f"{plus_minus(ratio)} ×"
            write_beside(axis, place, NOISY if ratio.is_too_noisy else words)
            if ratio.is_too_noisy:
                continue
            low, high = ratio.ends
            is_tied = ratio is not UNITY and (ratio.interval is None or low <= 1 <= high)
            draw_points(
                axis,
                [(place, ratio)],
                along="x",
                color=style["color"],
                marker=style["marker"],
                markersize=6,
                markerfacecolor="white" if is_tied else style["color"],
            )
    remarks = ["hollow: tied with the reference (the interval contains 1 or is missing)"]
    if any(row.implementation == INDEPENDENT for row in analysis.rows):
        remarks.append(f"{INDEPENDENT} is not shown: its replicas do not synchronize")
    return Drawn(figure, values, [*remarks, *left_out])


def _ratios(case: Sequence[Row]) -> dict[Row, Estimate]:
    """Speeds relative to the first row of torch's own implementation, or to the first of all."""
    names = [row.implementation for row in case]
    first = next((name for name in REFERENCES if name in names), names[0])
    reference = case[names.index(first)]
    ratios = {}
    for row in case:
        if (ratio := row.speedup_over(reference)) is not None:
            ratios[row] = ratio
    return ratios


def _is_stated(ratio: Estimate) -> bool:
    """Whether it says more than that the reference is as fast as itself."""
    return ratio is not UNITY and not ratio.is_too_noisy
