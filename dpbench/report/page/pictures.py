"""The charts of a page, as markup of its own colors and widths."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench.analysis.subject import Subject
from dpbench.report.charts import style
from dpbench.report.charts.files import any_letters, svg_of
from dpbench.report.charts.kinds import CHARTS, ChartKind
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import house_style
from dpbench.report.page.content import ChartImage
from dpbench.report.page.html import visible

THEME = {
    style.INK.lower(): "var(--ink)",
    "#000000": "var(--ink)",
    style.GRID.lower(): "var(--grid)",
    style.MUTED.lower(): "var(--muted)",
    "#ffffff": "var(--paper)",
}
"""The colors of text and lines; those of series are the same on light and dark pages."""
PANEL_SCALES = (1.3, 1.9)
"""Least and most pixels per point of a panel on a page that is wide enough: panels grow to fill
it."""
LEGEND_SCALES = (1.55, 1.55)
POINTS_PER_INCH = 72
MARGIN = 3.0
"""Points around a part of a chart."""


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
            title = figure.get_suptitle()
            image = ChartImage(
                kind=kind,
                title=title,
                parts=inline_parts(figure, svg_of(figure), title=title),
                caption=" ".join(figure.get_supxlabel().split()),
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


def inline_parts(figure: Figure, svg: str, *, title: str) -> tuple[str, ...]:
    """Markup of each panel and of the legend, safe to put into one page as it is; `svg` is the
    figure as a file has it.

    A page lays them out by its own width, and has the title and the caption beside them. To be
    called within `style.house_style()`.
    """
    prefix = f"c{hashlib.sha256(svg.encode(errors='replace')).hexdigest()[:8]}-"
    markup = visible(svg).replace(' xmlns="http://www.w3.org/2000/svg"', "")
    markup = markup.replace("xlink:href", "href")
    for color, variable in THEME.items():
        markup = markup.replace(f": {color}", f": {variable}")
    markup = re.sub(f'<g id="{style.TIP}([^"]*)">', r"<g><title>\1</title>", markup)
    # All charts of a page share one space of ids.
    root = ElementTree.fromstring(re.sub(r'( id="| href="#|url\(#)', rf"\1{prefix}", markup))
    groups = {element.get("id"): element for element in root.iter("g")}
    shared = [defs for defs in root.findall("defs") if defs.find("style") is None]
    parts: list[str] = []
    for artist in (*figure.axes, *figure.legends):
        width, view = _view(figure, artist)
        scales = PANEL_SCALES if isinstance(artist, Axes) else LEGEND_SCALES
        least, most = (width * scale for scale in scales)
        size = f"flex: {width:.0f} 1 {least:.0f}px; max-width: min({most:.0f}px, 100%)"
        look = {"viewBox": view, "style": size}
        name = "legend"
        if isinstance(artist, Axes):
            name = artist.get_title("left") or artist.get_ylabel()
        label = visible(f"{title}: {name}" if name else title)
        part = ElementTree.Element("svg", {**look, "role": "img", "aria-label": label})
        part.extend([*([] if parts else shared), groups[f"{prefix}{artist.get_gid()}"]])
        parts.append(ElementTree.tostring(part, encoding="unicode"))
    return tuple(parts)


def _view(figure: Figure, artist: Artist) -> tuple[float, str]:
    """The width of a part of a figure in points, and its place as a viewBox."""
    with any_letters():
        box = artist.get_tightbbox()
    assert box is not None
    scale = POINTS_PER_INCH / figure.dpi
    left, width = box.x0 * scale - MARGIN, box.width * scale + 2 * MARGIN
    top, height = (figure.bbox.height - box.y1) * scale - MARGIN, box.height * scale + 2 * MARGIN
    return width, f"{left:.1f} {top:.1f} {width:.1f} {height:.1f}"
