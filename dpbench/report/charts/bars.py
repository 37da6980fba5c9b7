"""Bars, a panel per group size and batch size: ratios of speeds, and what steps consist of."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.diagnosis.phases import step_phases
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.formatting import TOO_NOISY, plus_minus, span, time_text
from dpbench.analysis.rows import Row
from dpbench.analysis.scaling import UNITY
from dpbench.messages import one_line
from dpbench.report.charts.figures import (
    INK,
    MAX_PANELS,
    MUTED,
    captioned,
    first_of,
    panels,
    series_styles,
)
from dpbench.report.charts.kinds import NothingToDraw
from dpbench.specs.traits import IMPLEMENTATIONS, INDEPENDENT, SINGLE

MAX_BARS, BAR_INCHES = 14, 0.27
REFERENCES = ("torch-ddp", "torch-ddp-static", "torch-dp", SINGLE)
PHASE_COLORS = {
    "data": "#DDCC77",
    "forward": "#BBCCEE",
    "backward": "#99CCBB",
    "backward with communication": "#C4A291",
    "communication": "#EE7766",
    "optimizer": "#CCBBDD",
}
"""Pale colors, which no line has."""
MIN_LABELED_SHARE = 0.1
"""Least share of a step whose bar has its percentage inside."""


def implementations(analysis: Analysis) -> Figure:
    """One panel per group size and batch size; the reference is torch's own where measured."""
    sides = [row for row in analysis.rows if row.throughput and row.implementation != INDEPENDENT]
    ratios: dict[Row, Estimate] = {}
    for case in cases(sides):
        torch = (row for name in REFERENCES for row in case if row.implementation == name)
        reference = next(torch, case[0])
        compared = case if len(case) > 1 else []
        ratios |= {row: ratio for row in compared if (ratio := row.speedup_over(reference))}
    if not ratios:
        raise NothingToDraw("no two implementations have a throughput at the same sizes")
    styles = series_styles(analysis.rows)
    references = {row.series for row, ratio in ratios.items() if ratio is UNITY}
    other = one_line(references.pop()) if len(references) == 1 else "the reference"
    figure, shown, left_out = case_panels(ratios, f"× as fast as {other}")
    stated: list[Estimate] = []
    for axis, rows in shown:
        axis.axvline(1, color=MUTED, linewidth=1.0, zorder=1)
        for place, row in enumerate(rows):
            ratio = ratios[row]
            if ratio.is_too_noisy:
                write_beside(axis, place, TOO_NOISY)
                continue
            is_reference = ratio is UNITY
            write_beside(axis, place, "reference" if is_reference else f"{plus_minus(ratio)} ×")
            if not is_reference:
                stated.append(ratio)
            low, high = ratio.ends
            may_be_one = not is_reference and (ratio.interval is None or low <= 1 <= high)
            color, marker = styles[row.series]["color"], styles[row.series]["marker"]
            axis.errorbar(
                ratio.value,
                place,
                xerr=[[side] for side in ratio.sides],
                elinewidth=1.0,
                color=color,
                marker=marker,
                markersize=6,
                markerfacecolor="white" if may_be_one else color,
            )
    remarks = ["hollow: the interval of this row alone contains 1, or is missing"]
    if any(row.implementation == INDEPENDENT for row in analysis.rows):
        remarks.append(f"{INDEPENDENT} is not shown: its replicas do not synchronize")
    return captioned(figure, analysis, stated, [*remarks, *left_out])


def step_shares(analysis: Analysis) -> Figure:
    """One bar per configuration: the mean instrumented step over ranks and steps."""
    phases = {row: step for row in analysis.rows if (step := step_phases(row.usable_records))}
    if not phases:
        raise NothingToDraw("no trial measured the phases of a step")
    figure, shown, left_out = case_panels(phases, "share of the step (%); right: mean step")
    for axis, rows in shown:
        axis.set_xlim(0, 100)
        for place, row in enumerate(rows):
            step = phases[row]
            communicates = IMPLEMENTATIONS[row.implementation].communicates
            is_mixed = row.group_size > 1 and communicates and "communication" not in step.seconds
            # Communication that noise makes negative has no segment.
            lengths = {name: max(seconds.value, 0.0) for name, seconds in step.seconds.items()}
            left = 0.0
            for name, seconds in lengths.items():
                width = 100 * seconds / sum(lengths.values())
                label = f"{name} with communication" if is_mixed and name == "backward" else name
                look: dict[str, Any] = {"color": PHASE_COLORS[label], "edgecolor": "white"}
                axis.barh(place, width, height=0.78, left=left, label=label, **look)
                if round(width) > 100 * MIN_LABELED_SHARE:
                    text = f"{width:.0f} %"
                    axis.text(left + width / 2, place, text, ha="center", va="center", fontsize=8)
                left += width
            write_beside(axis, place, time_text(step.step_seconds))
    steps = span((phases[row].steps for _, rows in shown for row in rows), "step")
    remark = (
        f"means over {steps} per rank and repetition; instrumented steps wait for the "
        "device after each phase"
    )
    return captioned(figure, analysis, [], [remark, *left_out])


def cases(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that ran at the same sizes; the largest groups first, then by batch size."""

    def sizes(row: Row) -> tuple[int, int]:
        return -row.group_size, row.batch_size or 0

    return [[*case] for _, case in groupby(sorted(rows, key=sizes), sizes)]


def case_panels(
    rows: Collection[Row], label: str
) -> tuple[Figure, list[tuple[Axes, list[Row]]], list[str]]:
    """Panels below each other, one for each case, in which each row has a horizontal bar, and all
    have one scale with this label.

    Returns the figure, its panels with the rows that they show, and, if not all rows have room, the
    remark that says so.
    """
    drawn: list[list[Row]] = []
    room = MAX_BARS
    for case in cases(rows)[:MAX_PANELS]:
        if drawn and len(case) > room:
            break
        drawn.append(case[:room])
        room -= len(case)
    titles = []
    for first, *_ in drawn:
        replicas = units.counted(first.group_size, "replica")
        batch = f", batch size {first.batch_size:,}" if first.batch_size else ""
        titles.append(f"{replicas}{batch}")
    figure, axes = panels(titles, [BAR_INCHES * len(case) for case in drawn], sharex=True)
    axes[-1].set_xlabel(label)
    for axis, case in zip(axes, drawn, strict=True):
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.set_ylim(len(case) - 0.4, -0.6)
        axis.set_yticks(range(len(case)), [one_line(row.series) for row in case])
    remarks = first_of(sum(map(len, drawn)), len(rows), "configurations")
    return figure, [*zip(axes, drawn, strict=True)], remarks


def write_beside(axes: Axes, place: float, text: str) -> None:
    """Writes a text to the right of the panel, where no bar can hide it."""
    right = axes.get_yaxis_transform()
    axes.text(1.02, place, text, transform=right, va="center", fontsize=8.5, color=INK)
