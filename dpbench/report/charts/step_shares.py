"""Where the time of a step goes: data, forward, backward, communication, optimizer."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.diagnosis.phases import PhaseName, StepPhases, step_phases
from dpbench.messages import one_line
from dpbench.report.charts.rows import case_title, cases, cases_that_fit
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import legend, stacked, write_beside
from dpbench.report.numbers import time_text
from dpbench.specs.traits import IMPLEMENTATIONS

COLORS: dict[PhaseName, str] = {
    "data": "#DDCC77",
    "forward": "#BBCCEE",
    "backward": "#99CCBB",
    "communication": "#EE7766",
    "optimizer": "#CCBBDD",
}
"""Pale colors, which no line has."""
LABELED = 0.08
"""Least share of a step whose bar has its percentage inside."""


def step_shares(source: ChartSource) -> Figure:
    """One bar per configuration: the mean instrumented step over ranks and steps."""
    phases = {one: found for one in source.rows if (found := step_phases(one.records))}
    if not phases:
        raise NothingToDraw("no trial measured the phases of a step")
    shown = cases_that_fit(cases([*phases]))
    figure, axes = stacked([len(case) for case in shown])
    for axis, case in zip(axes, shown, strict=True):
        axis.set_title(case_title(case), pad=4)
        axis.set_yticks(range(len(case)), [one_line(one.series) for one in case])
        axis.set_xlim(0, 100)
        axis.set_xlabel("share of the step (%); right: mean step")
        for place, one in enumerate(case):
            communicates = IMPLEMENTATIONS[one.records[0].trial.implementation].communicates
            has_part = "communication" in phases[one].seconds
            is_mixed = one.group_size > 1 and communicates and not has_part
            _draw(axis, place, phases[one], is_mixed=is_mixed)
    legend(figure)
    drawn = [one for case in shown for one in case]
    remarks = [
        f"means over {units.span([phases[b].steps for b in drawn], 'step')} per rank in the first "
        "repetition; instrumented steps wait for the device after each phase"
    ]
    if len(drawn) < len(phases):
        remarks.append(f"{len(drawn)} of {len(phases):,} configurations")
    return source.finish(figure, "step-shares", [], remarks)


def _draw(axes: Axes, place: int, step: StepPhases, *, is_mixed: bool) -> None:
    """Segments side by side; communication that noise makes negative has no segment. `is_mixed`:
    communication cannot be separated from backward."""
    left, lengths = 0.0, {name: max(found.value, 0.0) for name, found in step.seconds.items()}
    for name, seconds in lengths.items():
        width = 100 * seconds / sum(lengths.values())
        has_both = is_mixed and name == "backward"
        axes.barh(
            place,
            width,
            left=left,
            height=0.78,
            color=COLORS[name],
            edgecolor="white",
            hatch="////" if has_both else None,
            label="backward with communication" if has_both else name,
        )
        if width > 100 * LABELED:
            middle, text = left + width / 2, f"{width:.0f} %"
            axes.text(middle, place, text, ha="center", va="center", fontsize=7, color="#111111")
        left += width
    write_beside(axes, place, time_text(step.step_seconds))
