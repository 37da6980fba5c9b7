"""Cells and columns as several tables of the page have them."""

from __future__ import annotations

from dpbench.analysis.fields.field import Plain
from dpbench.printable import one_line
from dpbench.report.numbers import MISSING
from dpbench.report.page.content import SortValue, TableCell, TableColumn

NOTHING = TableCell(text=MISSING, sort=None)


def text_column(header: str, meaning: str = "", *, key: str | None = None) -> TableColumn:
    """A column of `words`; its key is the header unless given."""
    return TableColumn(key=key or header.lower(), header=header, meaning=meaning, text=True)


def words(text: str) -> TableCell:
    """A cell of text, sorted by what it says."""
    line = one_line(text)
    return TableCell(text=line, sort=None if line == MISSING else line)


def sort_value(value: Plain) -> SortValue:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return float(value)
    return None if value is None else one_line(value)
