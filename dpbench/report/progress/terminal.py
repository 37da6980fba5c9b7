"""How wide tables and sentences are on a terminal, and in a file."""

from __future__ import annotations

import os
import shutil
import sys

WIDTH = 100
"""Sentences are no wider, on any terminal and in files."""
NO_TERMINAL = 80
"""Columns where there is no terminal."""


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
