"""The charts of a page, each drawn once: as a file in the report folder and as part of the page."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from matplotlib.figure import Figure

from dpbench.analysis.subject import Subject
from dpbench.files import as_text, write_whole
from dpbench.messages import one_line
from dpbench.report.charts import style
from dpbench.report.charts.files import (
    any_letters,
    drawn,
    remove_images,
    stem_of,
    svg_of,
)
from dpbench.report.charts.kinds import CHARTS, IMAGE_FORMATS, ChartKind
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import house_style
from dpbench.report.page.content import ChartImage
from dpbench.report.page.html import visible


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


def draw(subject: Subject, folder: Path | None = None) -> Pictures:
    """Draws every kind that the subject's records may have; with `folder` into files too.

    Files of charts that have nothing to show any more are removed, whatever their format; those
    of the others but SVG are left as they are. Raises OSError.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    pictures, absent, paths = [], [], []
    with house_style():
        for kind, source in _charts(subject):
            try:
                figure = _figure(kind, subject, source)
            except NothingToDraw as reason:
                absent.append((kind, f"{source.work}: {reason}" if source.work else str(reason)))
                if folder is not None:
                    remove_images(folder, stem_of(kind.name, source.work))
                continue
            svg = svg_of(figure)
            if folder is not None:
                file = folder / f"{stem_of(kind.name, source.work)}.svg"
                paths.append(write_whole(file, as_text(svg)))
            pictures.append((kind, _image(kind, figure, svg, source.work)))
    return Pictures(
        drawn=tuple(pictures), absent=tuple(absent), paths=tuple(paths), older=tuple(_older(paths))
    )


def _older(paths: Sequence[Path]) -> Iterator[Path]:
    others = (path.with_suffix(f".{image}") for path in paths for image in IMAGE_FORMATS)
    return (path for path in others if path not in paths and path.exists())


def _kinds(subject: Subject) -> Iterable[ChartKind]:
    """Kinds of charts: for trials if there are rows, for collectives if there are some."""
    sources = {
        "sweep": bool(subject.rows or subject.sweep),
        "collectives": bool(subject.collectives),
    }
    return (kind for kind in CHARTS.values() if sources.get(kind.source))


def _charts(subject: Subject) -> Iterator[tuple[ChartKind, ChartSource]]:
    """Every chart of each work, or of the collectives."""
    whole = ChartSource.of(subject)
    works = whole.works
    for kind in _kinds(subject):
        for source in works if kind.source == "sweep" else [whole]:
            yield kind, source


def _figure(kind: ChartKind, subject: Subject, source: ChartSource) -> Figure:
    if kind.source == "collectives":
        assert subject.collectives is not None
        return kind.draw(subject.collectives.records, source)
    return drawn(kind.draw, source)


def _image(kind: ChartKind, figure: Figure, svg: str, work: str) -> ChartImage:
    title = f"{kind.title}: {one_line(work)}" if work else kind.title
    return ChartImage(
        kind=kind.name,
        title=title,
        description=kind.shows,
        svg=inline_svg(figure, svg, kind=kind.name, title=title, description=kind.shows),
        caption=caption_of(figure),
    )


THEME = {
    style.INK: "ink",
    "#000000": "ink",
    style.GRID: "grid",
    style.MUTED: "muted",
    style.BLUE: "blue",
    style.VERMILION: "vermilion",
    style.GREEN: "green",
    style.ORANGE: "orange",
    style.SKY: "sky",
    style.PURPLE: "purple",
    style.WINE: "wine",
}
"""The colours of charts, by what style.css calls them: --chart-ink."""
WHITE = "#ffffff"
"""Paper where it fills a shape; white letters stay white, because they stand on a colour."""
LARGE_POINTS = 10
"""Coordinates from here on have one decimal, and smaller ones, of markers, two: the error is
a fifteenth of a pixel at the most."""

_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_REFERENCE = re.compile(r"(?:url\(|href=\")#([^)\"]+)")
_REPEATED = re.compile(r"([LCQ])[^A-Za-z]+(?:\1[^A-Za-z]+)+")
_COORDINATES = ("d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height", "transform")
_NO_ROTATION = re.compile(r"rotate\(-?0(?: [^)]*)?\) ?")


def inline_svg(figure: Figure, svg: str, *, kind: str, title: str, description: str) -> str:
    """Markup of the chart, safe to put into a page as it is; `svg` is the figure as a file has it.

    What the figure has as title and caption is cut off: `title` and `description` name the
    picture for those who do not see it, and the page sets a heading and `caption_of` beside it.
    To be called within `style.house_style()`.
    """
    root = ElementTree.fromstring(visible(svg))
    prefix = f"{kind}-{hashlib.sha256(svg.encode(errors='replace')).hexdigest()[:8]}"
    _forget_the_document(root)
    _cut_words_off(root, figure)
    _thin(root)
    _keep_needed_ids(root, prefix)
    _name(root, prefix, title, description)
    return ElementTree.tostring(root, encoding="unicode")


def caption_of(figure: Figure) -> str:
    """Sample sizes and environment, on one line: what a chart says below itself."""
    return " ".join(figure.get_supxlabel().split())


def _forget_the_document(root: ElementTree.Element) -> None:
    """Namespaces, metadata and style rules are a document's, not a part's."""
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name in [name for name in element.attrib if "}" in name]:
            element.attrib[name.rpartition("}")[2]] = element.attrib.pop(name)
    width = float(root.attrib.pop("width").removesuffix("pt"))
    del root.attrib["height"], root.attrib["version"]
    # As large as it was drawn: 4 pixels of CSS are 3 points.
    root.set("style", f"--drawn: {width * 4 / 3:.0f}px")


def _cut_words_off(root: ElementTree.Element, figure: Figure) -> None:
    """Takes the title and the caption away, and the room that they had above and below."""
    for parent in root.iter():
        for child in list(parent):
            if child.get("id") in {style.TITLE, style.CAPTION}:
                parent.remove(child)
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    bottom = height
    for text in figure.texts:
        with any_letters():
            box = text.get_window_extent()
        if text.get_gid() == style.TITLE:
            top = height * (1 - box.y0 / figure.bbox.height)
        elif text.get_gid() == style.CAPTION:
            bottom = height * (1 - box.y1 / figure.bbox.height)
    root.set("viewBox", f"{left:g} {top:.1f} {width:g} {bottom - top:.1f}")


def _thin(root: ElementTree.Element) -> None:
    for element in root.iter():
        for name in _COORDINATES:
            if name in element.attrib:
                element.set(name, _rounded(element.attrib[name]))
        if "d" in element.attrib:
            element.set("d", _short_path(element.attrib["d"]))
        if "transform" in element.attrib:
            element.set("transform", _NO_ROTATION.sub("", element.attrib["transform"]))
            if not element.attrib["transform"]:
                del element.attrib["transform"]
        if element is not root and "style" in element.attrib:
            element.set("style", _themed(element.tag, element.attrib["style"]))
        if element.tag != "text":
            element.text = None
        element.tail = None


def _themed(tag: str, rules: str) -> str:
    """The CSS declarations with the theme's colours, without those that the page already has."""
    kept = []
    for rule in rules.split(";"):
        name, _, value = (part.strip() for part in rule.partition(":"))
        if name == "font-family" or (name, value) == ("stroke-linejoin", "round"):
            continue
        lower = value.lower()
        if lower in _VARIABLES:
            value = _VARIABLES[lower]
        elif lower == WHITE and tag != "text":
            value = "var(--paper)"
        kept.append(f"{name}:{value}")
    return ";".join(kept)


def _keep_needed_ids(root: ElementTree.Element, prefix: str) -> None:
    """Ids that something refers to are numbered; others go, and groups that only had one."""
    markup = ElementTree.tostring(root, encoding="unicode")
    needed = dict.fromkeys(_REFERENCE.findall(markup))
    names = {name: f"{prefix}-{number}" for number, name in enumerate(needed)}
    for element in root.iter():
        if (name := element.attrib.pop("id", None)) in names:
            element.set("id", names[name])
        for key, value in element.attrib.items():
            if "#" in value and (found := _REFERENCE.search(f'{key}="{value}"')):
                element.set(key, value.replace(found[1], names[found[1]]))
    _open_empty_groups(root)


def _open_empty_groups(element: ElementTree.Element) -> None:
    children = []
    for child in element:
        _open_empty_groups(child)
        bare = child.tag in {"g", "defs"} and not (child.attrib if child.tag == "g" else len(child))
        children += list(child) if bare else [child]
    element[:] = children


def _name(root: ElementTree.Element, prefix: str, title: str, description: str) -> None:
    root.set("class", "picture")
    root.set("role", "img")
    root.set("aria-labelledby", f"{prefix}-title")
    root.set("aria-describedby", f"{prefix}-desc")
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, {"id": f"{prefix}-{tag}"})
        element.text = visible(text)
        root.insert(place, element)


def _rounded(text: str) -> str:
    def shorter(found: re.Match[str]) -> str:
        number = float(found[0])
        value = f"{number:.{1 if abs(number) >= LARGE_POINTS else 2}f}".rstrip("0").rstrip(".")
        return "0" if value == "-0" else value

    return _NUMBER.sub(shorter, " ".join(text.split()))


def _short_path(data: str) -> str:
    """The path with repeated commands written once: "M0 0L1 2 3 4"."""
    tight = re.sub(r" ?([A-Za-z]) ?", r"\1", data)
    return _REPEATED.sub(lambda run: run[1] + run[0][1:].replace(run[1], " "), tight)


_VARIABLES = {colour.lower(): f"var(--chart-{name})" for colour, name in THEME.items()}
