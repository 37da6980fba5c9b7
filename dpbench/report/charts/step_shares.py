"""Where the time of a step goes: data, forward, backward, communication, optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.diagnosis.phases import PhaseName, StepPhases, step_phases
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.rows import Measured, case_title, cases, cases_that_fit, measured_rows
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import finish, legend, stacked, write_beside
from dpbench.report.numbers import percentage, time_text
from dpbench.specs.traits import IMPLEMENTATIONS

COLOURS: dict[PhaseName, str] = {
    "data": "#DDCC77",
    "forward": "#BBCCEE",
    "backward": "#99CCBB",
    "communication": "#EE7766",
    "optimizer": "#CCBBDD",
}
"""Pale colours, which no line has."""
LABELLED = 0.06
"""Least share of a step whose bar has its percentage inside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    measured: Measured
    phases: StepPhases

    @property
    def row(self) -> ConfigurationSummary:
        return self.measured.row

    @property
    def hides_communication(self) -> bool:
        """Whether there is communication that cannot be separated from backward."""
        trial = self.measured.trial
        is_separate = any(phase.name == "communication" for phase in self.phases.phases)
        communicates = IMPLEMENTATIONS[trial.implementation].communicates
        return trial.group_size > 1 and communicates and not is_separate


def step_shares(source: ChartSource) -> Figure:
    """One bar per configuration: the mean instrumented step over ranks, steps and repetitions."""
    bars = [
        _Bar(measured=one, phases=phases)
        for one in measured_rows(source)
        if (phases := step_phases(one.records))
    ]
    if not bars:
        raise NothingToDraw("no trial measured the phases of a step; sweep with --phases 5")
    shown = cases_that_fit(cases(bars))
    figure, axes = stacked([len(case) for case in shown])
    for axis, case in zip(axes, shown, strict=True):
        axis.set_title(case_title(case), pad=4)
        axis.set_yticks(range(len(case)), [bar.measured.name for bar in case])
        axis.set_xlim(0, 100)
        for place, bar in enumerate(case):
            _draw(axis, place, bar)
    axes[-1].set_xlabel("share of the step (%); right: communication, mean step")
    legend(figure)
    drawn = [bar for case in shown for bar in case]
    repetitions = units.span([len(bar.measured.records) for bar in drawn], "repetition")
    remarks = [
        f"means over {repetitions} of {units.span([b.phases.steps for b in drawn], 'step')} per "
        "rank; instrumented steps wait for the device after each phase"
    ]
    if len(drawn) < len(bars):
        remarks.append(f"{len(drawn)} of {len(bars):,} configurations")
    return finish(figure, title=CHARTS["step-shares"].title, caption=source.caption([], remarks))


def _draw(axes: Axes, place: int, bar: _Bar) -> None:
    """Segments side by side; communication that noise makes negative has no segment."""
    left, shares = 0.0, [max(phase.share.value, 0.0) for phase in bar.phases.phases]
    for phase, share in zip(bar.phases.phases, shares, strict=True):
        width = 100 * share / sum(shares)
        is_mixed = bar.hides_communication and phase.name == "backward"
        axes.barh(
            place,
            width,
            left=left,
            height=0.78,
            color=COLOURS[phase.name],
            edgecolor="white",
            hatch="////" if is_mixed else None,
            label="backward with communication" if is_mixed else phase.name,
        )
        if width > 100 * LABELLED:
            middle = left + width / 2
            text = f"{width:.0f} %"
            axes.text(middle, place, text, ha="center", va="center", fontsize=7, color="#111111")
        left += width
        if phase.name == "communication":
            write_beside(axes, place, percentage(phase.share))
    write_beside(axes, place, time_text(bar.phases.instrumented_step_seconds), points=86)
