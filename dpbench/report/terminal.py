"""Writes tables and notes for people: tabulate's layouts, our own markup, lines that fit."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable

from tabulate import tabulate

from dpbench.analysis.csv_cells import inert
from dpbench.report import formats
from dpbench.report.export.markup import escape, html_table, latex_table, markdown_table
from dpbench.report.formats import is_markdown
from dpbench.report.table import Table, longest_line

WIDTH = 100


OWN: dict[str, Callable[[Table], str]] = {
    "html": html_table,
    "latex": latex_table,
    "markdown": markdown_table,
}
GAP = 2
"""Blanks between two columns."""
_TOGETHER = re.compile(r"(?<=[\d)]) (?=%)|(?<=batch|tects) (?=\d)|(?<=±) ")
"""Blanks at which nobody would break: before %, after ±, in "batch 16", "detects 8 %"."""
_GLUE = "\0"


def below(notes: Iterable[str], layout: str, width: int = WIDTH) -> list[str]:
    """The notes as they may stand below a table in that layout, in which none is markup."""
    if is_markdown(layout):
        return [f"- {escape(note)}" for note in notes]
    return [bullet(note, width) for note in notes]


def bullet(note: str, width: int = WIDTH) -> str:
    """The note behind "· ", its further lines indented; words stay whole."""
    return textwrap.fill(
        note,
        width,
        initial_indent="· ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def write_table(table: Table, layout: str = formats.DEFAULT) -> str:
    """The table without a newline at its end; `layout` is one of formats.FORMATS."""
    name = formats.ALIASES.get(layout, layout)
    return OWN[name](table) if name in OWN else _tabulated(table, name)


def width_of(table: Table, layout: str) -> int:
    """Characters of the widest line that a terminal shows of the table."""
    return max(map(len, _tabulated(table, layout).splitlines()))


def folded(table: Table, keys: Iterable[str] | None = None, *, limit: int = WIDTH) -> Table:
    """The table, with cells on several lines as far as it takes to fit `limit`.

    The first of the columns `keys` (all unless given) gives way first, down to its longest word;
    cells that are short enough stay on one line.
    """
    order = [column.key for column in table.columns]
    for place in map(order.index, order if keys is None else keys):
        excess = _width(table) - limit
        if not table.rows or excess <= 0:
            break
        texts = table.texts(place)
        header = longest_line([table.columns[place].header])
        words = (word for text in texts for word in _TOGETHER.sub(_GLUE, text).split())
        width = max(longest_line(texts) - excess, header, longest_line(words), 1)
        table = table.with_texts(place, [_lines(text, width) for text in texts])
    return table


def _tabulated(table: Table, layout: str) -> str:
    if layout == "tsv":  # which a spreadsheet reads: words must not be formulas
        for place, column in enumerate(table.columns):
            if column.text:
                table = table.with_texts(place, [*map(inert, table.texts(place))])
    text: str = tabulate(
        table.lines,
        headers=table.headers if any(table.headers) else (),
        tablefmt=layout,
        disable_numparse=True,
        colalign=["left" if c.text else "right" for c in table.columns] if table.rows else None,
    )
    return "\n".join(line.rstrip() for line in text.splitlines())


def _width(table: Table) -> int:
    widths = [
        longest_line([column.header, *table.texts(place)])
        for place, column in enumerate(table.columns)
    ]
    return sum(widths) + GAP * (len(widths) - 1)


def _lines(text: str, width: int) -> str:
    glued = _TOGETHER.sub(_GLUE, text)
    broken = textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(broken).replace(_GLUE, " ")
