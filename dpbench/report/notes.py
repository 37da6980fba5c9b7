"""Notes below a table: one each, with a bullet, wrapped to a width that reads well."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from dpbench.report.export.markdown import escape
from dpbench.report.formats import is_markdown

WIDTH = 100


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
