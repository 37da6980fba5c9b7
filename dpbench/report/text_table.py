"""A table as text cells: what every format for people is written from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Cells = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextColumn:
    """One column, its cells written."""

    key: str
    header: str
    cells: Cells
    wrapped: str = ""
    """The header on two lines, where there is such a one."""
    words: bool = False
    """Words are aligned left, numbers right."""
    narrowed: Callable[[int], Cells] | None = None
    """The cells in so many characters, some of them on two lines; None if they stay as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextTable:
    """Columns of equal length; the caption is for formats that have one."""

    columns: tuple[TextColumn, ...]
    caption: str = ""

    @property
    def lines(self) -> list[Cells]:
        """The cells row by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))

    @property
    def headers(self) -> list[str]:
        return [column.header for column in self.columns]


def longest_line(cells: Sequence[str]) -> int:
    """Characters of the longest line of any cell."""
    return max((len(line) for cell in cells for line in cell.split("\n")), default=0)
