"""Notes below a table: one each, with a bullet, wrapped to a width that reads well."""

from __future__ import annotations

import textwrap

WIDTH = 100


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
