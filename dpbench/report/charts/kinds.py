"""Every kind of chart: what it is called, what it shows, which function draws it.

Functions are imported when they draw: names and sentences are there without matplotlib, for help.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpbench.messages import one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpbench.analysis.analyze import Analysis
    from dpbench.analysis.collectives import Collectives

IMAGE_FORMATS = ("png", "svg", "pdf")
NO_COLLECTIVES = "no collective was measured at two sizes or more; dpbench comm measures them"
NO_TRAINING = "no training was measured; dpbench sweep measures it"


class NothingToDraw(Exception):
    """The data holds nothing that this chart could show; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class ChartKind:
    """One kind of chart; `name` is what `dpbench plot` and its file are called."""

    name: str
    title: str
    """What it shows, also for those who do not see it."""
    section: Literal["scaling", "time", "learning", "communication"]
    """The `id` of its section of the page."""
    function: str
    """The function that draws an `Analysis`, or `Collectives`, as "module:function" here."""
    page_group_sizes: int = 0
    """Fewest group sizes with which it says more than the other charts of the page."""

    @property
    def shows_collectives(self) -> bool:
        """Whether it shows what `dpbench comm` measures, and no training."""
        return self.section == "communication"

    def draw(self, results: Analysis | Collectives) -> Figure:
        """Draw it of one work, in `figures.house_style()`; raises NothingToDraw with a reason."""
        from dpbench.analysis.collectives import Collectives

        if isinstance(results, Collectives) != self.shows_collectives:
            raise NothingToDraw(NO_COLLECTIVES if self.shows_collectives else NO_TRAINING)
        figure: Figure = pkgutil.resolve_name(f"{__package__}.{self.function}")(results)
        title = f"{self.title}: {one_line(results.work)}" if results.work else self.title
        figure.suptitle(title, x=0.01, ha="left")
        return figure


CHARTS = {
    kind.name: kind
    for kind in (
        ChartKind("implementations", "Implementations compared", "scaling", "bars:implementations"),
        ChartKind("throughput", "Throughput by group size", "scaling", "curves:throughput"),
        ChartKind("speedup", "Speedup by group size", "scaling", "curves:speedup", 3),
        ChartKind("efficiency", "Efficiency by group size", "scaling", "curves:efficiency"),
        ChartKind("step-shares", "Phases of a step", "time", "bars:step_shares"),
        ChartKind("loss", "Loss over time", "learning", "curves:loss"),
        ChartKind("bandwidth", "Bandwidth by message size", "communication", "curves:bandwidth"),
    )
}
"""Kinds in the order in which they are listed and drawn."""
