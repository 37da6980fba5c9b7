"""A table as values, how it is laid out for a terminal and in Markdown, and how sentences are."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import tabulate

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.formatting import AT_MOST, NO_TIME
from dpbench.messages import one_line

TEXT_WIDTH = 100
"""Sentences are no wider, on any terminal and in files."""
NO_BREAK = "\N{NO-BREAK SPACE}"
UNBROKEN_SPACE = re.compile(
    r"(?<=\d) (?=[%±]|to [+-]\d)|(?<= to) (?=[+-]\d)|(?<=batch) (?=\d)|(?<=±) (?=\d)| (?=×)"
)
"""Blanks at which nobody would break: before % and ×, in "7 ± 2", "-1 to +2 %" and "batch 16"."""
_MARKUP = re.compile(r"[\\`*_\[\]<>|~&]")
_REFERENCE = re.compile(r"[@#](?=\w)")
"""GitHub turns these characters into a mention or a link to an issue, even if they are escaped."""
_ZERO_WIDTH = "\N{ZERO WIDTH SPACE}"
MISSING = "–"
AT_MOST_MEANS = f"{AT_MOST}: the interval includes 0, and this is its upper end"
NO_TIME_MEANS = f"{NO_TIME}: too little to measure"
UNLIMITED_WIDTH = 100_000
"""Width of a terminal that has room for all columns."""
COLUMN_GAP = 2
"""Spaces between columns on a terminal."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its header, its cells, and how it gives way where a table is too wide."""

    header: str
    cells: Sequence[str]
    """Each on one line. Text may come from a record, so writers escape it."""
    _: KW_ONLY
    is_text: bool = False
    """Text is aligned left, numbers right."""
    importance: float = math.inf
    """Where a terminal is too narrow, columns with the smallest number leave first; infinity stays,
    and its text folds. With 0 it is only on a page, where its reader can show it."""
    key: str = ""
    """What --columns calls it."""
    meaning: str = ""
    """One sentence that defines it, with its unit."""
    sort: Sequence[float | str | None] | None = None
    """Values that a page sorts it by, None last in either direction; None for the cells."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", tuple(map(one_line, self.cells)))

    @property
    def least_width(self) -> int:
        """Characters of the longest part that stays on one line."""
        glued = UNBROKEN_SPACE.sub(NO_BREAK, " ".join(self.cells))
        parts = glued.split(" ") if self.is_text and self.importance == math.inf else self.cells
        return max(map(len, (*self.header.split("\n"), *parts)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Columns of equal length."""

    columns: tuple[Column, ...]
    """Text lacks those that are only on a page, where readers choose."""
    notes: tuple[str, ...] = ()
    """Lines below it: what all rows have in common, marks in cells, why rows failed."""
    groups: int = 0
    """First columns that a terminal leaves empty where they are those of the row above."""
    rules: tuple[int, ...] = ()
    """Rows above which there is a rule, on a page until its reader sorts the table."""

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """The texts, row by row."""
        return [*zip(*(column.cells for column in self.columns), strict=True)]

    @property
    def all_notes(self) -> list[str]:
        """The notes, and what the sign in cells means that have one end of an interval."""
        cells = [cell for column in self.as_text.columns for cell in column.cells]
        marks = [AT_MOST_MEANS] if any(cell.startswith(AT_MOST) for cell in cells) else []
        marks += [NO_TIME_MEANS] if NO_TIME in cells else []
        return [*marks, *self.notes]

    @property
    def as_text(self) -> Table:
        """The table without the columns that only a page has."""
        return replace(self, columns=tuple(c for c in self.columns if c.importance))

    def text(self, width: int | None = None) -> str:
        """The table for a terminal, without a newline at its end; None has room for all columns.

        Columns leave in their order until the others fit, and are named below. Then cells of
        columns that fold take several lines, those of the last column before others. Numbers are
        never broken.
        """
        width = width or UNLIMITED_WIDTH
        shown = kept = self.as_text
        for least in sorted({c.importance for c in shown.columns} - {math.inf}):
            if kept._room(width) < 0:
                kept = replace(kept, columns=tuple(c for c in kept.columns if c.importance > least))
        lines = kept._with_rules([*zip(*kept._folded_cells(width), strict=True)])
        text = kept._tabulated([column.header for column in kept.columns], lines, "simple")
        notes = kept.all_notes
        if absent := [one_line(c.header) for c in shown.columns if c not in kept.columns]:
            names = ", ".join(absent)
            notes.append(f"Not shown at {width} columns: {names} (wider terminal, or a pipe)")
        below = [wrap_text(note, min(width, TEXT_WIDTH), others="  ") for note in notes]
        return "\n".join([*(line.rstrip() for line in text.splitlines()), *below])

    def _folded_cells(self, width: int) -> list[list[str]]:
        """The cells of each column, on several lines where it is too wide."""
        room = max(0, self._room(width))
        folded = []
        for column in self.columns:
            cells = [wrap_text(cell, column.least_width + room) for cell in column.cells]
            width_used = max(map(len, "\n".join((column.header, *cells)).split("\n")))
            room -= width_used - column.least_width
            folded.append(cells)
        return folded

    def _with_rules(self, lines: Sequence[Sequence[str]]) -> list[Sequence[str]]:
        """The lines with rules between them, and without the names of a group that the line above
        has."""
        ruled = list[Sequence[str]]()
        for place, line in enumerate(lines):
            if place in self.rules:
                ruled.append(tabulate.SEPARATING_LINE)
            group = line[: self.groups]
            is_same = place > 0 and group == lines[place - 1][: self.groups]
            ruled.append([*[""] * len(group), *line[len(group) :]] if is_same else line)
        return ruled

    @property
    def markdown(self) -> str:
        """The whole table as Markdown, which is readable as plain text too, without a newline at
        its end."""
        shown = self.as_text
        lines = [[*map(escape, line)] for line in shown.lines]
        headers = [escape(column.header) for column in shown.columns]
        text = shown._tabulated(headers, lines, "pipe")
        return "\n\n".join(filter(None, (text, *map(escape, self.all_notes))))

    def _tabulated(self, headers: Sequence[str], lines: Sequence[Sequence[str]], style: str) -> str:
        """The table as text, with headers as wide as their words; empty without lines, so that a
        table without rows is its notes."""
        if not lines:
            return ""
        padding = tabulate.MIN_PADDING  # there is no argument for it
        tabulate.MIN_PADDING = 0
        try:
            text: str = tabulate.tabulate(
                lines,
                headers=headers if any(headers) else (),
                tablefmt=style if any(headers) else "plain",
                disable_numparse=True,
                colalign=["left" if column.is_text else "right" for column in self.columns],
            )
        finally:
            tabulate.MIN_PADDING = padding
        return text

    def _room(self, width: int) -> int:
        """Characters that are left of a line where all columns are as narrow as they can be."""
        return width + COLUMN_GAP - sum(column.least_width + COLUMN_GAP for column in self.columns)


def or_missing(estimate: Estimate | None, write: Callable[[Estimate], str]) -> str:
    """The text of a cell."""
    return MISSING if estimate is None else write(estimate)


def terminal_width() -> int | None:
    """Width of the terminal on stdout, or what COLUMNS says; None for a file or a pipe."""
    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return shutil.get_terminal_size().columns if is_known else None


def wrap_text(text: str, width: int, *, first: str = "", others: str | None = None) -> str:
    """The text on lines of at most so many characters; words and numbers with their units stay
    whole. The first line begins with `first`, further ones with `others`, or else as the text is
    indented."""
    lines = textwrap.fill(
        UNBROKEN_SPACE.sub(NO_BREAK, text),
        width,
        initial_indent=first,
        subsequent_indent=text[: len(text) - len(text.lstrip())] if others is None else others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace(NO_BREAK, " ")


def keep_on_line(text: str) -> str:
    """The text, which no line end will break when it is wrapped."""
    return text.replace(" ", NO_BREAK)


def escape(text: str) -> str:
    """The text on one line, without Markdown markup, mentions or cell separators."""
    plain = _MARKUP.sub(lambda match: f"\\{match[0]}", one_line(text))
    return _REFERENCE.sub(lambda match: match[0] + _ZERO_WIDTH, plain)
