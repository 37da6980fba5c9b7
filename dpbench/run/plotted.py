"""The charts of a results folder or a published table, each drawn from what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.errors import UsageError
from dpbench.options.shared import RowFilter
from dpbench.run.results import filter_choices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpbench.analysis.subject import Subject
    from dpbench.report.charts.kinds import ChartKind
    from dpbench.report.charts.source import ChartSource

EVERY_ROW = RowFilter()


def select_rows(subject: Subject, wanted: RowFilter) -> Subject:
    """The subject with the wanted rows alone; raises UsageError if there are none."""
    rows = tuple(row for row in subject.rows if wanted.passes(row))
    if subject.rows and not rows:
        raise UsageError(f"{subject.name}: no such row; there are {filter_choices(subject.rows)}")
    return replace(
        subject,
        rows=rows,
        explanations=tuple(one for one in subject.explanations if wanted.passes(one.row)),
    )


def charts_of(
    kind: ChartKind, subject: Subject, path: Path, wanted: RowFilter = EVERY_ROW
) -> dict[str, Callable[[], Figure]]:
    """What draws the charts of a kind, by their work: "", or each of several.

    `subject` has the wanted rows alone. Drawing raises NothingToDraw, which says what is missing.
    """
    from dpbench.report.charts.source import ChartSource

    source = ChartSource.of(subject)
    if kind.source == "collectives":
        records = tuple(
            record
            for record in source.collectives
            if wanted.group_sizes is None or record.collective.group_size in wanted.group_sizes
            if wanted.backends is None or record.collective.backend in wanted.backends
        )
        return {"": partial(kind.draw, replace(source, collectives=records))}
    if kind.source == "projections":
        return {"": partial(_projection, kind, source, path, wanted)}
    return {one.work: partial(kind.draw, one) for one in source.works}


def _projection(kind: ChartKind, source: ChartSource, path: Path, wanted: RowFilter) -> Figure:
    """The chart of `dpbench project` without further options."""
    from dpbench.options.project import ProjectOptions
    from dpbench.report.charts.source import NothingToDraw
    from dpbench.run.projection import project

    if not source.rows:
        raise NothingToDraw("a projection needs a sweep, for its step times")
    chosen = {name: getattr(wanted, name) for name in RowFilter.model_fields}
    try:
        found = project(ProjectOptions(path=path, **chosen))
    except UsageError as error:
        raise NothingToDraw(str(error).removeprefix(f"{path}: ")) from None
    return kind.draw(replace(source, projections=found.projections))
