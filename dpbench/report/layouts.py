"""Writes a table of text cells in any layout for people: our own markup, and tabulate's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tabulate import tabulate

from dpbench.analysis.csv_cells import inert
from dpbench.report import formats
from dpbench.report.export.html import html_table
from dpbench.report.export.latex import latex_table
from dpbench.report.export.markdown import markdown_table
from dpbench.report.fitting import Fitted, fit, longest_cells
from dpbench.report.text_table import Cells, TextColumn, TextTable

OWN: dict[str, Callable[[TextTable], str]] = {
    "html": html_table,
    "latex": latex_table,
    "markdown": markdown_table,
}


def write_layout(table: TextTable, layout: str) -> str:
    """The table without a newline at its end; `layout` is one of formats.FORMATS."""
    name = formats.ALIASES.get(layout, layout)
    if name in OWN:
        return OWN[name](table)
    return _tabulated(name, table.columns, table.lines)


def fit_layout(columns: tuple[TextColumn, ...], layout: str, limit: int, *, asked: bool) -> Fitted:
    """What of the columns fits a terminal in a layout; all of them if they were `asked` for."""
    if not formats.is_for_terminals(layout):
        return Fitted(columns=columns)
    return fit(columns, partial(_width, layout), limit, all_of_them=asked)


def _inert(column: TextColumn) -> Cells:
    """The cells of words without formulas; numbers stay as they are."""
    return tuple(map(inert, column.cells)) if column.words else column.cells


def _width(layout: str, columns: Sequence[TextColumn]) -> int:
    text = _tabulated(layout, columns, [longest_cells(columns)])
    return max(map(len, text.splitlines()))


def _tabulated(layout: str, columns: Sequence[TextColumn], lines: Sequence[Sequence[str]]) -> str:
    if layout == "tsv":  # which a spreadsheet reads
        columns = [replace(one, cells=_inert(one)) for one in columns]
        lines = [*zip(*(column.cells for column in columns), strict=True)]
    text: str = tabulate(
        lines,
        headers=[column.header for column in columns],
        tablefmt=layout,
        disable_numparse=True,
        colalign=["left" if column.words else "right" for column in columns] if lines else None,
    )
    return "\n".join(line.rstrip() for line in text.splitlines())
