"""How wide tables are on a terminal, and in a file."""

from __future__ import annotations

import os
import shutil
import sys

WIDTH = 100
"""Columns where there is no terminal; texts are no wider in a wider one."""


def table_limit() -> int | None:
    """The width that tables have to fit; None where stdout is a file or a pipe, unless COLUMNS says
    one."""
    return table_width() if sys.stdout.isatty() or os.environ.get("COLUMNS") else None


def table_width() -> int:
    """Width of the terminal on stdout, or what COLUMNS says; 100 where there is neither."""
    return shutil.get_terminal_size((WIDTH, 24)).columns
