"""Where the time of a step goes: data, forward, backward, communication, optimizer."""

from __future__ import annotations

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.diagnosis.phases import PhaseName, step_phases
from dpbench.messages import one_line
from dpbench.report.charts.kinds import NothingToDraw
from dpbench.report.charts.style import Drawn, case_panels, write_beside
from dpbench.report.formatting import time_text
from dpbench.specs.traits import IMPLEMENTATIONS

COLORS: dict[PhaseName, str] = {
    "data": "#DDCC77",
    "forward": "#BBCCEE",
    "backward": "#99CCBB",
    "communication": "#EE7766",
    "optimizer": "#CCBBDD",
}
"""Pale colors, which no line has."""
LABELED = 0.1
"""Least share of a step whose bar has its percentage inside."""


def step_shares(analysis: Analysis) -> Drawn:
    """One bar per configuration: the mean instrumented step over ranks and steps."""
    phases = {row: step for row in analysis.rows if (step := step_phases(row.records))}
    if not phases:
        raise NothingToDraw("no trial measured the phases of a step")
    figure, panels, left_out = case_panels(phases)
    for axis, rows in panels:
        axis.set_yticks(range(len(rows)), [one_line(row.series) for row in rows])
        axis.set_xlim(0, 100)
        axis.set_xlabel("share of the step (%); right: mean step")
        for place, row in enumerate(rows):
            step = phases[row]
            communicates = IMPLEMENTATIONS[row.implementation].communicates
            is_mixed = row.group_size > 1 and communicates and "communication" not in step.seconds
            # Communication that noise makes negative has no segment.
            lengths = {name: max(seconds.value, 0.0) for name, seconds in step.seconds.items()}
            left = 0.0
            for name, seconds in lengths.items():
                width = 100 * seconds / sum(lengths.values())
                has_both = is_mixed and name == "backward"
                axis.barh(
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
                    text = f"{width:.0f} %"
                    axis.text(left + width / 2, place, text, ha="center", va="center", fontsize=8)
                left += width
            write_beside(axis, place, time_text(step.step_seconds))
    steps = units.span((phases[row].steps for _, rows in panels for row in rows), "step")
    remark = (
        f"means over {steps} per rank and repetition; instrumented steps wait for the "
        "device after each phase"
    )
    return Drawn(figure, [], [remark, *left_out])
