"""Help as plain text, and errors that name the remedy, the same for every command.

typer's own help wants a wide terminal and shows every option at once. Here a command with many
options shows those that its declarations mark as common; `--help-all` shows the rest.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

import typer

from dpbench.report.progress.terminal import WIDTH, table_width

MOST_OPTIONS = 20
"""A command that has more shows the common ones only."""
WIDEST_NAMES = 28
"""Columns of the names of options; the help of a longer one begins on the next line."""
OPTIONS = "Options"
DEFAULT = "[default: "
GLUE = "\0"
"""A blank at which no line is broken."""
EXAMPLE = "dpbench "
"""How a paragraph of a docstring begins that is an example."""


def heading(text: str) -> str:
    """The title of a block, bold on a terminal."""
    return f"{typer.style(text, bold=True) if _may_style() else text}:"


def _may_style() -> bool:
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_wanted and sys.stdout.isatty()


def _width() -> int:
    return min(table_width(), WIDTH)


def filled(text: str) -> str:
    """A paragraph in lines that fit."""
    return textwrap.fill(" ".join(text.split()), _width(), break_on_hyphens=False)


def narrow(names: Iterable[str]) -> int:
    """The columns that names take, of those that are not too long."""
    return max((len(name) for name in names if len(name) <= WIDEST_NAMES), default=0)


def two_columns(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Each name with its help beside it, or below it where the name is too long."""
    indent = " " * (width + 4)
    room = max(_width() - len(indent), 20)
    for name, text in rows:
        glued = text.replace(DEFAULT, DEFAULT.replace(" ", GLUE))
        lines = textwrap.wrap(glued, room, break_on_hyphens=False) or [""]
        lines = [line.replace(GLUE, " ") for line in lines]
        marked = typer.style(name, fg="cyan") if _may_style() else name
        if len(name) <= width:
            yield f"  {marked}{' ' * (width - len(name))}  {lines[0]}".rstrip()
            lines = lines[1:]
        else:
            yield f"  {marked}"
        yield from (f"{indent}{line}" for line in lines if line)
