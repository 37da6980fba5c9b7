"""The charts of a page, each drawn once: as a file in the report folder and as part of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from dpbench.analysis.subject import Subject
from dpbench.files import as_text, write_whole
from dpbench.report.charts.files import IMAGES, remove_images, svg_of
from dpbench.report.charts.kinds import CHARTS, ChartKind
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import house_style
from dpbench.report.page.content import ChartImage
from dpbench.report.page.inline_svg import caption_of, inline_svg


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictures:
    """The drawn charts of one subject, and why others were not drawn."""

    drawn: tuple[tuple[ChartKind, ChartImage], ...] = ()
    absent: tuple[tuple[ChartKind, str], ...] = ()
    paths: tuple[Path, ...] = ()
    older: tuple[Path, ...] = ()
    """Files of the same charts in other formats, which `dpbench plot` wrote earlier."""
    left_out: str | None = None
    """Why none was drawn at all."""


def without(reason: str) -> Pictures:
    return Pictures(left_out=reason)


def draw(
    subject: Subject, folder: Path | None = None, *, between: Callable[[], None] = lambda: None
) -> Pictures:
    """Draws every kind that the subject's records may have; with `folder` into files too.

    Files of charts that have nothing to show any more are removed, whatever their format; those
    of the others but SVG are left as they are. `between` is called before every chart, and what it
    raises ends the drawing. Raises OSError.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    drawn, absent, paths = [], [], []
    with house_style():
        for kind in _kinds(subject):
            between()
            try:
                figure = _figure(kind, subject)
            except NothingToDraw as reason:
                absent.append((kind, str(reason)))
                if folder is not None:
                    remove_images(folder, kind.name)
                continue
            svg = svg_of(figure)
            if folder is not None:
                paths.append(write_whole(folder / f"{kind.name}.svg", as_text(svg)))
            drawn.append((kind, _image(kind, figure, svg)))
    return Pictures(
        drawn=tuple(drawn), absent=tuple(absent), paths=tuple(paths), older=tuple(_older(paths))
    )


def _older(paths: Sequence[Path]) -> Iterator[Path]:
    others = (path.with_suffix(f".{image}") for path in paths for image in IMAGES)
    return (path for path in others if path not in paths and path.exists())


def _kinds(subject: Subject) -> Iterable[ChartKind]:
    """Kinds of charts: for trials if there are rows, for collectives if there are some."""
    sources = {
        "sweep": bool(subject.rows or subject.sweep),
        "collectives": bool(subject.collectives),
    }
    return (kind for kind in CHARTS.values() if sources.get(kind.source))


def _figure(kind: ChartKind, subject: Subject) -> Figure:
    source = ChartSource.of(subject)
    if kind.source == "collectives":
        assert subject.collectives is not None
        return kind.draw(subject.collectives.records, source)
    return kind.draw(source)


def _image(kind: ChartKind, figure: Figure, svg: str) -> ChartImage:
    return ChartImage(
        kind=kind.name,
        title=kind.title,
        description=kind.shows,
        svg=inline_svg(figure, svg, kind=kind.name, title=kind.title, description=kind.shows),
        caption=caption_of(figure),
    )
