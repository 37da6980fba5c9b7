"""Notes below a table: one each, with a bullet, wrapped to a width that reads well."""

from __future__ import annotations

import textwrap

WIDTH = 100


def bullet(note: str) -> str:
    """The note behind "· ", its further lines indented; long words stay whole."""
    return textwrap.fill(
        note, WIDTH, initial_indent="· ", subsequent_indent="  ", break_long_words=False
    )
