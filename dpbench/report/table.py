"""A table as values, which every format is written from: terminal, Markdown, HTML, page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from dpbench.messages import one_line

SortValue = float | str | None
MISSING = "–"


@dataclass(frozen=True, kw_only=True, slots=True)
class TableColumn:
    """One column: its header, what it means, how it is aligned."""

    key: str
    header: str
    meaning: str = ""
    """One sentence that defines it, with its unit."""
    text: bool = False
    """Text is aligned left, numbers right."""
    shown: bool = True
    """False: on the page the reader has to choose it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """The text of a cell, and the value it is sorted by; None is last in either direction."""

    text: str
    sort: SortValue = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRow:
    """One line of a table."""

    cells: tuple[TableCell, ...]
    status: str | None = None
    """A `Status` value, if the row has one; the page highlights rows that did not complete."""
    command: str = ""
    """The command that measures the row again, which a page can copy; empty for others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Columns and rows. Text may come from a record, so writers escape it."""

    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    caption: str = ""
    """Title above it on a page."""
    has_controls: bool = False
    """Whether readers of a page can filter it, choose its columns and copy it."""

    @property
    def has_commands(self) -> bool:
        return any(row.command for row in self.rows)

    @property
    def headers(self) -> list[str]:
        return [column.header for column in self.columns]

    @property
    def lines(self) -> list[list[str]]:
        """The texts, row by row."""
        return [[cell.text for cell in row.cells] for row in self.rows]

    def texts(self, place: int) -> list[str]:
        """The texts of one column."""
        return [row.cells[place].text for row in self.rows]

    def with_texts(self, place: int, texts: Sequence[str]) -> Table:
        """Other texts in one column."""
        rows = []
        for row, text in zip(self.rows, texts, strict=True):
            cells = [*row.cells]
            cells[place] = replace(cells[place], text=text)
            rows.append(replace(row, cells=tuple(cells)))
        return replace(self, rows=tuple(rows))

    def without(self, keys: Collection[str]) -> Table:
        """The table without these columns."""
        places = [k for k, column in enumerate(self.columns) if column.key not in keys]
        rows = (replace(row, cells=tuple(row.cells[k] for k in places)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[k] for k in places), rows=tuple(rows))

    def without_repeats(self, count: int = 1) -> Table:
        """The table with the first `count` columns empty where they are those of the row above."""
        table, firsts = self, [line[:count] for line in self.lines]
        for place in range(count):
            texts = [
                "" if k and line == firsts[k - 1] else line[place] for k, line in enumerate(firsts)
            ]
            table = table.with_texts(place, texts)
        return table


def text_table(
    headers: Sequence[str],
    lines: Iterable[Sequence[str]],
    *,
    words: Collection[str] = (),
    keys: Sequence[str] = (),
) -> Table:
    """A table of texts, each on one line; columns whose key is among `words` are aligned left,
    others right. Keys are the headers unless given."""
    pairs = zip(keys or headers, headers, strict=True)
    return Table(
        columns=tuple(
            TableColumn(key=key, header=one_line(one), text=key in words) for key, one in pairs
        ),
        rows=tuple(
            TableRow(cells=tuple(TableCell(text=one_line(text)) for text in line)) for line in lines
        ),
    )


def text_column(header: str, meaning: str = "") -> TableColumn:
    """A column of `words`, whose key is the header."""
    return TableColumn(key=header.lower(), header=header, meaning=meaning, text=True)


def words(text: str) -> TableCell:
    """A cell of text, sorted by itself."""
    line = one_line(text)
    return TableCell(text=line, sort=None if line == MISSING else line)


def whole(number: int) -> TableCell:
    """A cell of a whole number, sorted by it."""
    return TableCell(text=str(number), sort=float(number))


def longest_line(cells: Iterable[str]) -> int:
    """Characters of the longest line of any cell."""
    return max((len(line) for cell in cells for line in cell.split("\n")), default=0)
