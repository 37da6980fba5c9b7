"""A table as values, from which every format is laid out: terminal, Markdown, HTML, page."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dpbench.messages import one_line

SortValue = float | str | None
MISSING = "–"


@dataclass(frozen=True, kw_only=True, slots=True)
class TableColumn:
    """One column: its header, its cells, and how it gives way where a table is too wide."""

    key: str
    header: str
    cells: tuple[str, ...]
    """Text may come from a record, so writers escape it."""
    meaning: str = ""
    """One sentence that defines it, with its unit."""
    is_text: bool = False
    """Text is aligned left, numbers right."""
    sort: tuple[SortValue, ...] | None = None
    """Values that a page sorts it by, None last in either direction; None for the cells."""
    shown: bool = True
    """False: on the page the reader has to choose it."""
    folds: bool = False
    """Whether its cells may take several lines on a terminal."""
    leaves: int = 0
    """Order in which it leaves a terminal that is too narrow; 0 stays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Columns of equal length."""

    columns: tuple[TableColumn, ...]
    caption: str = ""
    """Title above it on a page."""
    has_controls: bool = False
    """Whether readers of a page can filter it and choose its columns."""
    groups: int = 0
    """First columns that a terminal leaves empty where they are those of the row above."""
    statuses: tuple[str, ...] = ()
    """A `Status` value for each row; the page highlights rows that did not complete."""
    commands: tuple[str, ...] = ()
    """The command that measures each row again, which a page can copy; "" for none."""

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """The texts, row by row."""
        return [*zip(*(column.cells for column in self.columns), strict=True)]

    def without(self, keys: Collection[str]) -> Table:
        """The table without these columns."""
        return replace(self, columns=tuple(one for one in self.columns if one.key not in keys))


def column(header: str, cells: Iterable[str], *, key: str = "", **look: Any) -> TableColumn:
    """A column of numbers, each on one line. The key is the header unless given; `look` has other
    fields of TableColumn."""
    return TableColumn(key=key or header, header=header, cells=tuple(map(one_line, cells)), **look)


def text_column(header: str, cells: Iterable[str], **look: Any) -> TableColumn:
    """A column of words."""
    return column(header, cells, is_text=True, **look)
