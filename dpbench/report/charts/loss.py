"""Training loss against seconds of the timed window: what the speed is for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.convergence import is_finite, losses
from dpbench.analysis.summary import usable_repetitions
from dpbench.analysis.throughput import elapsed_seconds, step_seconds
from dpbench.records import TrialRecord
from dpbench.report.charts.curves import chosen
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import SeriesStyle, finish, panels, series_styles
from dpbench.specs import TrialSpec

MOST_POINTS = 40
"""Blocks of steps in a curve; single steps would only show the noise of mini-batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Curve:
    row: ConfigurationSummary
    record: TrialRecord
    losses: tuple[float, ...]


def loss_by_seconds(source: ChartSource) -> Figure:
    """One panel a batch size; every implementation at its largest group size, first repetition."""
    found = _curves(source)
    if not found:
        raise NothingToDraw("no completed trial recorded losses")
    batch_sizes = [curve.row.batch_size or 0 for curve in found]
    shown = chosen(batch_sizes)
    names = list(dict.fromkeys((c.row.implementation, c.row.backend) for c in found))
    styles = series_styles(names)
    figure, axes = panels(len(shown), share_y=True)
    handles: dict[str, Line2D] = {}
    for axis, batch_size in zip(axes, shown, strict=True):
        for curve in (c for c in found if c.row.batch_size == batch_size):
            style = styles[f"{curve.row.implementation} {curve.row.backend}"]
            seconds, values = _blocks(curve)
            (line,) = axis.plot(seconds, values, color=style.color, linestyle=style.linestyle)
            _mark_end(axis, style, seconds, values)
            label = f"{curve.row.series} ×{curve.row.group_size}"
            handles.setdefault(label, line)
        axis.set_title(f"batch size {batch_size}")
        axis.set_xlabel("seconds of the timed window")
    axes[0].set_ylabel("training loss (mean over ranks)")
    figure.legend(
        handles=list(handles.values()),
        labels=list(handles),
        loc="outside right upper",
        handlelength=3.2,
    )
    return finish(
        figure, title="Loss by seconds", caption=source.caption([], _remarks(source, found, shown))
    )


def _curves(source: ChartSource) -> list[_Curve]:
    groups: dict[TrialSpec, list[TrialRecord]] = {}
    for record in source.records:
        groups.setdefault(record.trial.configuration, []).append(record)
    found: dict[tuple[str, str | None, int | None], _Curve] = {}
    for row in source.rows:
        if row.configuration is None:
            continue
        usable = usable_repetitions(groups.get(row.configuration, []))
        for record in usable[:1]:
            curve = _Curve(row=row, record=record, losses=losses(record))
            key = (row.implementation, row.backend, row.batch_size)
            # Rows come in order of group size, so the largest one stays.
            if len(curve.losses) > 1 and is_finite(curve.losses):
                found[key] = curve
    return list(found.values())


def _blocks(curve: _Curve) -> tuple[list[float], list[float]]:
    """Means of losses over consecutive blocks of steps, at the end of each block."""
    steps = step_seconds(curve.record)
    ends = np.cumsum(steps) * (elapsed_seconds(curve.record) / steps.sum())
    count = min(MOST_POINTS, len(curve.losses))
    values = [float(block.mean()) for block in np.array_split(curve.losses, count)]
    return [float(block[-1]) for block in np.array_split(ends, count)], values


def _mark_end(
    axes: Axes, style: SeriesStyle, seconds: Sequence[float], values: Sequence[float]
) -> None:
    """A marker where the window ends: faster ones end further left."""
    axes.plot(seconds[-1:], values[-1:], color=style.color, marker=style.marker)


def _remarks(source: ChartSource, found: Sequence[_Curve], shown: Sequence[int]) -> list[str]:
    remarks = ["first repetition", "largest group size of each implementation"]
    steps = max(len(curve.losses) for curve in found)
    if steps > MOST_POINTS:
        remarks.append(f"means of up to {math.ceil(steps / MOST_POINTS)} steps")
    measured = {curve.row.batch_size for curve in found}
    if len(shown) < len(measured):
        listed = ", ".join(map(str, shown))
        remarks.append(f"batch sizes {listed} of {len(measured)} measured")
    return remarks
