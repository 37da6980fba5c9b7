"""Lays out sentences: for a terminal, in Markdown."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable

from dpbench.messages import one_line

WIDTH = 100
"""Sentences are no wider, on any terminal and in files."""
NO_TERMINAL = 80
"""Columns where there is no terminal."""
NO_BREAK = "\N{NO-BREAK SPACE}"
TOGETHER = re.compile(r"(?<=\d) (?=%)|(?<=batch|tects) (?=\d)")
"""Blanks at which nobody would break: before %, in "batch 16" and "detects 8 %"."""
_MARKUP = re.compile(r"[\\`*_\[\]<>|~&]")
_REFERENCE = re.compile(r"[@#](?=\w)")
"""GitHub turns these characters into a mention or a link to an issue, even if they are escaped."""
_ZERO_WIDTH = "\N{ZERO WIDTH SPACE}"


def table_limit() -> int | None:
    """The width that tables have to fit; None where stdout is a file or a pipe, unless COLUMNS says
    one."""
    return table_width() if sys.stdout.isatty() or os.environ.get("COLUMNS") else None


def table_width() -> int:
    """Width of the terminal on stdout, or what COLUMNS says; 80 where there is neither."""
    return shutil.get_terminal_size((NO_TERMINAL, 24)).columns


def filled(text: str, width: int, *, first: str = "", others: str | None = None) -> str:
    """The text on lines of at most so many characters; words and numbers with their units stay
    whole. The first line begins with `first`, further ones with `others`, or else as the text is
    indented."""
    lines = textwrap.fill(
        TOGETHER.sub(NO_BREAK, text),
        width,
        initial_indent=first,
        subsequent_indent=text[: len(text) - len(text.lstrip())] if others is None else others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace(NO_BREAK, " ")


def bullets(notes: Iterable[str], width: int) -> str:
    """One paragraph with a bullet for each note, its further lines indented."""
    return "\n".join(filled(note, width, first="· ", others="  ") for note in notes)


def side_by_side(parts: Iterable[str], width: int) -> str:
    """The parts on one line, or on as many as it takes; none is broken."""
    return filled("   ".join(part.replace(" ", NO_BREAK) for part in parts), width)


def not_shown(headers: Iterable[str], width: int, option: str) -> str:
    """Says which columns had no room, and the option that shows them."""
    return f"Not shown at {width} columns: {', '.join(headers)} (wider terminal, or {option})"


def escape(text: str) -> str:
    """The text on one line, without Markdown markup, mentions or cell separators."""
    plain = _MARKUP.sub(lambda found: f"\\{found[0]}", one_line(text))
    return _REFERENCE.sub(lambda found: found[0] + _ZERO_WIDTH, plain)
