"""What stands above and below every chart: its title, and where its numbers come from."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.estimate import CONFIDENCE, Estimate
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.records.environment import environment_line
from dpbench.report.charts.style import MUTED

CHARACTERS_PER_INCH = 15.5


def with_caption(
    figure: Figure, title: str, subject: Subject, values: Sequence[Estimate], remarks: Sequence[str]
) -> Figure:
    """Puts the title above, which names the work where there are several; below it how the
    intervals of the `values` came about, what is not shown, and the environment."""
    whole = f"{title}: {one_line(subject.work)}" if subject.work else title
    figure.suptitle(whole, x=0.01, ha="left", fontsize=12, fontweight="bold")
    environments = subject.stored.environments if subject.stored else {}
    records = subject.sweep.records if subject.sweep else ()
    used = {name for record in records for name in record.environment_ids} or {*environments}
    parts = (*interval_words(values), *remarks, environment_line(environments, used), subject.name)
    text = textwrap.fill(
        " · ".join(map(one_line, parts)),
        int(figure.get_figwidth() * CHARACTERS_PER_INCH),
        break_on_hyphens=False,
    )
    look: dict[str, Any] = {"ha": "left", "fontsize": 7.5, "color": MUTED}
    figure.supxlabel(text, x=0.01, **look)
    return figure


def interval_words(values: Sequence[Estimate]) -> list[str]:
    """How the intervals of a chart came about, and which values have none."""
    words = []
    repeated = [one for one in values if one.basis == "repetitions"]
    if repeated:
        count = units.span(one.sample_size for one in repeated)
        words.append(f"bars: {units.percent(CONFIDENCE)} interval over n = {count} repetitions")
    if single := sum(one.basis == "single value" for one in values):
        words.append(f"{units.counted(single, 'point')} without a bar: n = 1")
    return words
