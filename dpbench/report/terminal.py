"""Lays out any table, in the formats that --format takes, and notes below it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence

import tabulate

from dpbench.errors import UnknownName
from dpbench.report.formats import escape, html_table, markdown_table
from dpbench.report.progress.terminal import table_width, text_width
from dpbench.report.table import Table, longest_line

# Headers as wide as their words: two spaces more in each of 13 columns would not fit a terminal.
# Tabulate has no argument for it; set once, before any table is laid out.
tabulate.MIN_PADDING = 0

DEFAULT = "text"
"""The layout for terminals."""
DATA_FORMATS = ("csv", "json")
"""Plain values for programs, under all keys."""
DOCUMENTS: dict[str, Callable[[Table], str]] = {
    "html": html_table,
    "markdown": markdown_table,
}
FORMATS = (DEFAULT, *DOCUMENTS, *DATA_FORMATS)
"""All but HTML, which notebooks show, are offered on the command line."""

_TOGETHER = re.compile(r"(?<=\d) (?=%)|(?<=batch|tects) (?=\d)")
"""Blanks at which nobody would break: before %, in "batch 16" and "detects 8 %"."""
_GLUE = "\0"


def check_format(name: str) -> str:
    """Returns the name; raises UnknownName if there is no such format."""
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS)
    return name


def below(notes: Iterable[str], layout: str) -> list[str]:
    """The notes as they may stand below a table in that layout, in which none is markup."""
    if layout == "markdown":
        return [f"- {escape(note)}" for note in notes]
    return [bullet(note) for note in notes]


def bullet(note: str, width: int | None = None) -> str:
    """The note behind "· ", its further lines indented; words stay whole. As wide as sentences on
    stdout unless `width` is given."""
    return textwrap.fill(
        note,
        width or text_width(),
        initial_indent="· ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def filled(text: str, width: int | None = None) -> str:
    """The text on lines of at most so many characters, or as wide as sentences on stdout; words
    and numbers with their units stay whole."""
    lines = textwrap.fill(
        _TOGETHER.sub(_GLUE, text),
        width or text_width(),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace(_GLUE, " ")


def side_by_side(parts: Iterable[str], width: int) -> str:
    """The parts on one line, or on as many as it takes; none is broken."""
    lines: list[str] = []
    for part in parts:
        if lines and len(f"{lines[-1]}   {part}") <= width:
            lines[-1] += f"   {part}"
        else:
            lines.append(part)
    return "\n".join(lines)


def write_table(table: Table, layout: str = DEFAULT) -> str:
    """The table without a newline at its end; `layout` is DEFAULT or one of DOCUMENTS."""
    return _tabulated(table) if layout == DEFAULT else DOCUMENTS[layout](table)


def fitted(table: Table, order: Iterable[str], width: int | None = None) -> tuple[Table, list[str]]:
    """The table without the first of the columns `order`, as many as it takes to fit `width`, or
    stdout, and their headers from left to right."""
    dropped = []
    for key in order:
        if longest_line([_tabulated(table)]) <= (width or table_width()):
            break
        dropped += [one.header.replace("\n", " ") for one in table.columns if one.key == key]
        table = table.without([key])
    return table, dropped[::-1]


def folded(table: Table, keys: Iterable[str] | None = None, *, limit: int | None = None) -> Table:
    """The table, with cells on several lines as far as it takes to fit `limit`, or stdout.

    The first of the columns `keys` that it has (all unless given) gives way first, down to its
    longest word; cells that are short enough stay on one line.
    """
    order = [column.key for column in table.columns]
    for place in [order.index(key) for key in keys or order if key in order]:
        excess = longest_line([_tabulated(table)]) - (limit or table_width())
        if not table.rows or excess <= 0:
            break
        texts = table.texts(place)
        header = longest_line([table.columns[place].header])
        words = (word for text in texts for word in _TOGETHER.sub(_GLUE, text).split())
        width = max(longest_line(texts) - excess, header, longest_line(words), 1)
        table = table.with_texts(place, [filled(text, width) for text in texts])
    return table


def folded_or_fewer(
    table: Table, words: Sequence[str], leave: Sequence[Sequence[str]]
) -> tuple[Table, list[str]]:
    """The table with the columns `words` folded to fit stdout, and without as many of the groups of
    columns `leave` as it takes, because numbers are never broken; and a note that names these."""

    def fits(keys: Sequence[str]) -> bool:
        narrow = folded(table.without(keys), words)
        return longest_line([_tabulated(narrow)]) <= table_width()

    left: list[str] = []
    for keys in leave:
        if not fits(left):
            left += keys
    for keys in leave:  # a narrow group may fit where a wide one left after it
        fewer = [key for key in left if key not in keys]
        if fits(fewer):
            left = fewer
    dropped = [column.key for column in table.columns if column.key in left]
    note = f"left out to fit {table_width()} columns (see --json): {', '.join(dropped)}"
    return folded(table.without(left), words), [note] if dropped else []


def _tabulated(table: Table) -> str:
    text: str = tabulate.tabulate(
        table.lines,
        headers=table.headers if any(table.headers) else (),
        tablefmt="simple",
        disable_numparse=True,
        colalign=["left" if c.text else "right" for c in table.columns] if table.rows else None,
    )
    return "\n".join(line.rstrip() for line in text.splitlines())
