"""Shares of a step's time: a bar for each configuration, a segment for each phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dpbench import units
from dpbench.analysis.diagnosis.phases import (
    PHASES,
    PhaseEstimate,
    PhaseName,
    StepPhases,
    step_phases,
)
from dpbench.analysis.estimate import Estimate
from dpbench.report.charts import bars
from dpbench.report.charts.bars import Measured
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    GREEN,
    ON_COLOUR,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    finish,
)
from dpbench.report.numbers import plus_minus, time_unit
from dpbench.specs.traits import IMPLEMENTATIONS

MOST_BARS = 30
COLOURS: dict[PhaseName, str] = {
    "data": PURPLE,
    "forward": SKY,
    "backward": GREEN,
    "communication": VERMILION,
    "optimizer": ORANGE,
}
PERCENT_PER_CHARACTER = 1.15
VISIBLE = 0.005
STEP_COLUMN = 78.0
"""Position of the column, in points from the panel."""
HATCH = "////"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    measured: Measured
    phases: StepPhases

    @property
    def hides_communication(self) -> bool:
        """Tells whether there is communication that cannot be told from backward."""
        trial = self.measured.trial
        told = any(phase.name == "communication" for phase in self.phases.phases)
        communicates = IMPLEMENTATIONS[trial.implementation].communicates
        return trial.group_size > 1 and communicates and not told


def step_shares(source: ChartSource) -> Figure:
    """One bar a configuration, of its mean instrumented step over ranks, steps, repetitions."""
    found = {
        one: phases for one in bars.measured_rows(source) if (phases := step_phases(one.records))
    }
    if not found:
        raise NothingToDraw("no trial measured the phases of a step; sweep with --phases 5")
    every = bars.cases(list(found))
    shown = bars.cases_that_fit(every, MOST_BARS, len)
    blocks = [[_Bar(measured=one, phases=found[one]) for one in case] for case in shown]
    height = bars.height_of(blocks)
    figure, axes = bars.figure_of(height)
    named = []
    for (place, rows), case in zip(bars.row_positions(blocks), shown, strict=True):
        bars.write_heading(axes, place, bars.case_title(case))
        for at, bar in rows:
            _draw(axes, at, bar)
            named.append((at, bar.measured.name))
    bars.write_beside(axes, 0, "communication")
    bars.write_beside(axes, 0, "step", points=STEP_COLUMN)
    bars.finish_rows(axes, named, height)
    lowest = min(_negative(bar.phases) for block in blocks for bar in block)
    axes.set_xlim(100 * lowest, 100 * (1 - lowest))
    axes.set_xlabel("share of the instrumented step (%)")
    drawn = [bar for block in blocks for bar in block]
    bars.legend(axes, _key(drawn))
    return finish(
        figure,
        title=CHARTS["step-shares"].title,
        caption=source.caption([], _remarks(drawn, len(found))),
    )


def _draw(axes: Axes, place: float, bar: _Bar) -> None:
    """Positive segments to the right of each other, a negative one to the left of zero."""
    left = 0.0
    for phase in bar.phases.phases:
        width = 100 * phase.share.value
        hatched = bar.hides_communication and phase.name == "backward"
        axes.barh(
            place,
            width,
            left=left if width > 0 else 0,
            height=0.78,
            color=COLOURS[phase.name],
            edgecolor="white",
            linewidth=0.8,
            hatch=HATCH if hatched else None,
        )
        _label(axes, left + width / 2, place, phase, hatched=hatched)
        left += max(width, 0.0)
    communication = next((p for p in bar.phases.phases if p.name == "communication"), None)
    if communication is not None:
        bars.write_beside(
            axes, place, _percent(communication.share), color=COLOURS["communication"]
        )
    bars.write_beside(axes, place, _time(bar.phases.instrumented_step_seconds), points=STEP_COLUMN)


def _label(axes: Axes, middle: float, place: float, phase: PhaseEstimate, *, hatched: bool) -> None:
    """Label a segment with as much of "backward 61 ± 2 %" as fits."""
    number = _percent(phase.share)
    value = f"{units.fixed_percent(phase.share.value)}"
    plain = {"facecolor": COLOURS[phase.name], "edgecolor": "none", "pad": 1.0}
    for text in (f"{phase.name} {number}", number, value):
        if len(text) * PERCENT_PER_CHARACTER < 100 * phase.share.value:
            axes.text(
                middle,
                place,
                text,
                ha="center",
                va="center",
                fontsize=7,
                color=ON_COLOUR,
                bbox=plain if hatched else None,
            )
            return


def _percent(share: Estimate) -> str:
    return f"{plus_minus(share, scale=100, plain_decimals=0, two_after_one=False)} %"


def _time(seconds: Estimate) -> str:
    """Seconds in the unit that fits: "13.2 ± 0.4 ms"."""
    size, unit = time_unit(seconds.value)
    return f"{plus_minus(seconds, scale=1 / size, plain_decimals=1, two_after_one=False)} {unit}"


def _negative(phases: StepPhases) -> float:
    return min(0.0, *(phase.share.value for phase in phases.phases))


def _key(drawn: Sequence[_Bar]) -> list[Patch]:
    names = {phase.name for bar in drawn for phase in bar.phases.phases}
    key = [Patch(color=COLOURS[name], label=name) for name in PHASES if name in names]
    if any(bar.hides_communication for bar in drawn):
        both = "backward with communication"
        key.append(Patch(facecolor=COLOURS["backward"], edgecolor="white", hatch=HATCH, label=both))
    return key


def _remarks(drawn: Sequence[_Bar], found: int) -> list[str]:
    steps = units.span([bar.phases.steps for bar in drawn], "step")
    means = [bar.phases.instrumented_step_seconds for bar in drawn]
    samples = [mean.sample_size for mean in means]
    remarks = [
        f"±: {units.percent(means[0].confidence)} interval over "
        f"{units.span(samples, 'repetition')} of {steps} a rank"
        if max(samples) > 1
        else f"single values (n = 1) of {steps} a rank",
        "right: the mean instrumented step, which waits for the device after each phase",
    ]
    if any(_negative(bar.phases) < -VISIBLE for bar in drawn):
        remarks.append("left of 0: communication that noise makes negative")
    if len(drawn) < found:
        remarks.append(f"{len(drawn)} of {found:,} configurations")
    return remarks
