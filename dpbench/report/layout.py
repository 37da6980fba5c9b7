"""Lays out tables and sentences: for a terminal, in Markdown, in HTML."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console, Group
from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text

from dpbench.messages import one_line
from dpbench.report.table import Table, TableColumn

WIDTH = 100
"""Sentences are no wider, on any terminal and in files."""
NO_TERMINAL = 80
"""Columns where there is no terminal."""
UNLIMITED = 100_000
"""Width of a table in a file, which keeps all columns."""
GAP = 2
"""Spaces between columns."""
_TOGETHER = re.compile(r"(?<=\d) (?=%)|(?<=batch|tects) (?=\d)")
"""Blanks at which nobody would break: before %, in "batch 16" and "detects 8 %"."""
_MARKUP = re.compile(r"[\\`*_\[\]<>|~&]")
_REFERENCE = re.compile(r"[@#](?=\w)")
"""GitHub turns these characters into a mention or a link to an issue, even if they are escaped."""
_NO_BREAK, _ZERO_WIDTH = "\N{NO-BREAK SPACE}", "\N{ZERO WIDTH SPACE}"


def table_limit() -> int | None:
    """The width that tables have to fit; None where stdout is a file or a pipe, unless COLUMNS says
    one."""
    return table_width() if sys.stdout.isatty() or os.environ.get("COLUMNS") else None


def table_width() -> int:
    """Width of the terminal on stdout, or what COLUMNS says; 80 where there is neither."""
    return shutil.get_terminal_size((NO_TERMINAL, 24)).columns


def text_width() -> int:
    """Width of sentences on stdout."""
    return min(table_width(), WIDTH)


def filled(text: str, width: int | None = None, *, first: str = "", others: str = "") -> str:
    """The text on lines of at most so many characters, or as wide as sentences on stdout; words and
    numbers with their units stay whole. Lines begin with `first` and `others`."""
    lines = textwrap.fill(
        _TOGETHER.sub(_NO_BREAK, text),
        width or text_width(),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace(_NO_BREAK, " ")


def bullets(notes: Iterable[str], width: int | None = None) -> str:
    """One paragraph with a bullet for each note, its further lines indented."""
    return "\n".join(filled(note, width, first="· ", others="  ") for note in notes)


def side_by_side(parts: Iterable[str], width: int) -> str:
    """The parts on one line, or on as many as it takes; none is broken."""
    lines: list[str] = []
    for part in parts:
        if lines and len(f"{lines[-1]}   {part}") <= width:
            lines[-1] += f"   {part}"
        else:
            lines.append(part)
    return "\n".join(lines)


def table_text(table: Table, width: int | None = None) -> tuple[str, list[str]]:
    """The table for a terminal, and the headers that have no room in it, from left to right.

    It is as wide as stdout unless `width` is given. First cells of columns that fold take several
    lines, those of the last column before others; then columns leave in their order. Numbers are
    never broken.
    """
    limit = width or table_width()
    kept = _without_repeats(table)
    for order in sorted({one.leaves for one in table.columns} - {0}):
        if _total(map(_least_width, kept.columns)) <= limit:
            break
        kept = kept.without({one.key for one in kept.columns if one.leaves == order})
    widths = [max(map(cell_len, (*one.header.split("\n"), *one.cells))) for one in kept.columns]
    for place, one in reversed([*enumerate(kept.columns)]):
        excess = max(0, _total(widths) - limit)
        widths[place] = max(widths[place] - excess, _least_width(one))
    keys = {one.key for one in kept.columns}
    absent = [one_line(one.header) for one in table.columns if one.key not in keys]
    return _drawn(kept, widths), absent


def not_shown(headers: Iterable[str], width: int, option: str) -> str:
    """Says which columns had no room, and the option that shows them."""
    return f"Not shown at {width} columns: {', '.join(headers)} (wider terminal, or {option})"


def _total(widths: Iterable[int]) -> int:
    every = [*widths]
    return sum(every) + GAP * (len(every) - 1)


def _without_repeats(table: Table) -> Table:
    firsts = [line[: table.groups] for line in table.lines]
    columns = [
        replace(
            one,
            cells=tuple(
                "" if k and firsts[k] == firsts[k - 1] else cell for k, cell in enumerate(one.cells)
            ),
        )
        for one in table.columns[: table.groups]
    ]
    return replace(table, columns=(*columns, *table.columns[table.groups :]))


def _least_width(column: TableColumn) -> int:
    cells = map(_unbreakable, column.cells) if column.folds else map(cell_len, column.cells)
    return max(max(map(cell_len, column.header.split("\n"))), max(cells, default=0))


def _unbreakable(text: str) -> int:
    """Width of the longest part of a cell that stays on one line."""
    glued = _TOGETHER.sub(lambda found: _NO_BREAK * len(found[0]), text)
    return max(map(cell_len, glued.split(" ")))


def _drawn(table: Table, widths: Sequence[int]) -> str:
    """Columns of rich, with a rule below each header."""
    headed = any(one.header for one in table.columns)
    shown = RichTable(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=headed)
    height = max(one.header.count("\n") for one in table.columns)
    for one, width in zip(table.columns, widths, strict=True):
        header = one.header + "\n" * (height - one.header.count("\n"))
        shown.add_column(
            Group(Text(header), Rule(characters="-", style="")),
            justify="left" if one.is_text else "right",
            width=width,
        )
    for line in table.lines:
        pairs = zip(line, widths, strict=True)
        shown.add_row(*(Text(filled(cell, width) if cell else "") for cell, width in pairs))
    console = Console(file=io.StringIO(), width=_total(widths), color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def escape(text: str) -> str:
    """The text on one line, without Markdown markup, mentions or cell separators."""
    plain = _MARKUP.sub(lambda found: f"\\{found[0]}", one_line(text))
    return _REFERENCE.sub(lambda found: found[0] + _ZERO_WIDTH, plain)


def unbroken(text: str) -> str:
    """The text on one line; numbers do not break at their ±."""
    return one_line(text).replace(" ± ", f"{_NO_BREAK}±{_NO_BREAK}")


DOCUMENTS: dict[str, tuple[str, Callable[[str], str]]] = {
    "html": ("html", unbroken),
    "markdown": ("pipe", escape),
}
"""Formats of documents: tabulate's name of each, and what makes a text one of its cells."""


def table_document(table: Table, format: str) -> str:
    """The whole table as Markdown, which is readable as plain text too, or as a plain HTML element;
    without a newline at its end."""
    import tabulate

    tabulate.MIN_PADDING = 0  # headers as wide as their words; it has no argument for it
    name, write = DOCUMENTS[format]
    text: str = tabulate.tabulate(
        [[*map(write, line)] for line in table.lines],
        headers=[write(one.header) for one in table.columns],
        tablefmt=name,
        disable_numparse=True,
        colalign=["left" if one.is_text else "right" for one in table.columns],
    )
    return text
