"""Every kind of chart: what it is called, what it shows, which function draws it.

A kind has a function of its name ("-" is "_" there) in `curves` or `bars`. They are imported when a
chart is drawn: names and sentences are there without matplotlib, for help.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpbench.analysis.analyze import Analysis
    from dpbench.report.charts.figures import Drawn

IMAGE_FORMATS = ("png", "svg", "pdf")


class PageSection(StrEnum):
    """Sections of the page, in their order, with their titles."""

    RESULTS = "Results"
    SCALING = "Scaling"
    TIME = "Where the time goes"
    LEARNING = "Loss curves"
    COMMUNICATION = "Communication"
    ENVIRONMENT = "Environment"
    REPRODUCE = "Reproduce"

    @property
    def is_open(self) -> bool:
        """Whether a reader sees more than its title before they open it."""
        return self.name in ("RESULTS", "SCALING", "COMMUNICATION")


class NothingToDraw(Exception):
    """The data holds nothing that this chart could show; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class ChartKind:
    """One kind of chart; `name` is what `dpbench plot` and its file are called."""

    name: str
    title: str
    """What it shows, also for those who do not see it."""
    section: PageSection

    @property
    def is_of_sweeps(self) -> bool:
        """Whether it shows sweeps, and not measurements of collectives."""
        return self.section is not PageSection.COMMUNICATION

    def draw(self, analysis: Analysis) -> Figure:
        """Draw it of one work, in `figures.house_style()`; raises NothingToDraw with a reason."""
        from dpbench.report.charts import bars, curves
        from dpbench.report.charts.figures import with_caption

        draw = {**vars(curves), **vars(bars)}[self.name.replace("-", "_")]
        drawn: Drawn = draw(analysis)
        return with_caption(drawn, self.title, analysis)


_KINDS = (
    ChartKind("implementations", "Implementations compared", PageSection.SCALING),
    ChartKind("throughput", "Throughput by group size", PageSection.SCALING),
    ChartKind("speedup", "Speedup by group size", PageSection.SCALING),
    ChartKind("efficiency", "Efficiency by group size", PageSection.SCALING),
    ChartKind("step-shares", "Phases of a step", PageSection.TIME),
    ChartKind("loss", "Loss over time", PageSection.LEARNING),
    ChartKind("bandwidth", "Bandwidth by message size", PageSection.COMMUNICATION),
)
CHARTS = {kind.name: kind for kind in _KINDS}
"""Kinds in the order in which they are listed and drawn."""
