"""What stands above and below every chart: its title, and where its numbers come from."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.estimate import CONFIDENCE
from dpbench.messages import one_line
from dpbench.records.environment import environment_line
from dpbench.report.charts.style import MUTED, Drawn

CHARACTERS_PER_INCH, LINE_INCHES, MARGIN_INCHES = 16.5, 0.15, 0.08
"""The width of a caption's characters, the height of its lines, and the margin around it."""
KEY_WIDTH_INCHES, KEY_HEIGHT_INCHES = 1.6, 0.19
"""Room of an entry of the legend."""


def with_caption(drawn: Drawn, title: str, analysis: Analysis) -> Figure:
    """Puts the title above, which names the work where there are several. Below are one legend for
    all panels, how the intervals came about, what is not shown, and the environment."""
    figure, values, remarks = drawn
    whole = f"{title}: {one_line(analysis.work_label)}" if analysis.work_label else title
    figure.suptitle(whole, x=0.01, ha="left", fontsize=12, fontweight="bold")
    environments = analysis.stored.environments if analysis.stored else {}
    words = []
    repeated = [value.sample_size for value in values if value.basis == "repetitions"]
    if repeated:
        level, count = units.percent(CONFIDENCE), units.span(repeated)
        words.append(f"bars: {level} interval over n = {count} repetitions")
    if single := sum(value.basis == "single value" for value in values):
        words.append(f"{units.counted(single, 'point')} without a bar: n = 1")
    parts = (*words, *remarks, environment_line(environments, {*environments}), analysis.name)
    text = textwrap.fill(
        " · ".join(map(one_line, parts)),
        int(figure.get_figwidth() * CHARACTERS_PER_INCH),
        break_on_hyphens=False,
    )
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = int(figure.get_figwidth() / KEY_WIDTH_INCHES)
    # The layout of the panels leaves room for both, whatever the number of their lines.
    written = (text.count("\n") + 1) * LINE_INCHES + 2 * MARGIN_INCHES
    below = written + math.ceil(len(handles) / columns) * KEY_HEIGHT_INCHES
    height = figure.get_figheight() + below
    figure.set_figheight(height)
    spacing: Any = figure.get_layout_engine()
    spacing.set(rect=(0, below / height, 1, 1 - below / height))
    look: dict[str, Any] = {"ncols": columns, "fontsize": 9, "borderaxespad": 0}
    if handles:
        anchor = (0.01, written / height)
        legend = figure.legend([*handles.values()], [*handles], loc=anchor, **look)
        legend.set_in_layout(False)
    place = MARGIN_INCHES / height
    caption = figure.supxlabel(text, x=0.01, y=place, ha="left", va="bottom", fontsize=8)
    caption.set(in_layout=False, color=MUTED)
    return figure
