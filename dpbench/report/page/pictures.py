"""The charts of a page: whole SVGs, of which a page chooses the width and the theme."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure

from dpbench.analysis.subject import Subject
from dpbench.report.charts.files import svg_of
from dpbench.report.charts.kinds import CHARTS, ChartKind
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import house_style
from dpbench.report.markup import visible

POINTS_PER_INCH = 72


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartImage:
    """A chart that was drawn."""

    kind: ChartKind
    title: str
    svg: str
    """Markup, safe to put into a page as it is."""
    width: int
    """Points."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictures:
    """The drawn charts of one subject, and why others were not drawn."""

    drawn: tuple[ChartImage, ...] = ()
    absent: tuple[tuple[ChartKind, str], ...] = ()


def draw(subject: Subject) -> Pictures:
    """Draws every kind that the subject's records may have."""
    pictures, absent = [], []
    with house_style():
        for kind, source in _charts(subject):
            try:
                if kind.source == "collectives" and subject.collectives is not None:
                    figure = kind.draw(subject.collectives.records, source)
                else:
                    figure = kind.draw(source)
            except NothingToDraw as reason:
                absent.append((kind, f"{source.work}: {reason}" if source.work else str(reason)))
                continue
            image = ChartImage(
                kind=kind,
                title=visible(figure.get_suptitle()),
                svg=inline_svg(figure, salt=f"{kind.name} {source.work}"),
                width=round(figure.get_figwidth() * POINTS_PER_INCH),
            )
            pictures.append(image)
    return Pictures(drawn=tuple(pictures), absent=tuple(absent))


def _charts(subject: Subject) -> Iterator[tuple[ChartKind, ChartSource]]:
    """Every chart of each work, and those of the collectives."""
    whole = ChartSource.of(subject)
    for kind in CHARTS.values():
        if kind.source == "sweep" and (subject.rows or subject.sweep):
            yield from ((kind, source) for source in whole.works)
        elif kind.source == "collectives" and subject.collectives:
            yield kind, whole


def inline_svg(figure: Figure, *, salt: str) -> str:
    """The figure as an element of a page, whose paper shows through; within `house_style`.

    The ids that it refers to are its own, as all charts of a page share one space of ids and each
    has another `salt`.
    """
    with mpl.rc_context({"svg.hashsalt": salt}):
        text = svg_of(figure)
    return visible(text[text.index("<svg") :])
