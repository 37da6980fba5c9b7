"""The content of a report page as values: all text is plain, and only charts contain markup.

Text may come from a record, so the template escapes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpbench.report.charts.kinds import ChartKind
from dpbench.report.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One of the numbers at the top."""

    title: str
    value: str
    """The number with its unit and interval: "2,662 ± 294 images/s"."""
    about: str
    """The configuration, and what qualifies the number."""


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
class Section:
    """Charts and tables under one heading."""

    key: str
    title: str
    charts: tuple[ChartImage, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    code: str = ""
    """A command as it is typed."""
    folded: bool = True
    """Whether a reader sees the title alone until they open it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The report of one results folder or published table."""

    title: str
    version: str
    """dpbench's version."""
    about: str
    """Model, data, hardware, versions, and how many trials were run, on one line."""
    warnings: tuple[str, ...]
    """Warnings to read before a number is believed."""
    tiles: tuple[Tile, ...]
    advice: tuple[str, ...]
    """Advice; the largest loss first."""
    sections: tuple[Section, ...]
