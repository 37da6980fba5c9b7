"""Properties of a terminal: its width, how often to draw, and whether at all."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

REDRAWS_PER_SECOND = 2
WIDTH = 100
"""Columns where there is no terminal; texts are no wider in a wider one."""


def can_draw(console: Console) -> bool:
    """Tells whether its cursor can be moved; FORCE_COLOR makes no terminal of a file."""
    return console.file.isatty() and not console.is_dumb_terminal


def table_limit() -> int | None:
    """The width that tables have to fit; None where stdout is a file or a pipe, unless COLUMNS says
    one."""
    return table_width() if sys.stdout.isatty() or os.environ.get("COLUMNS") else None


def table_width() -> int:
    """Width of the terminal on stdout, or what COLUMNS says; 100 where there is neither."""
    return shutil.get_terminal_size((WIDTH, 24)).columns
