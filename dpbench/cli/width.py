"""How wide what is printed may be."""

from __future__ import annotations

import shutil

WITHOUT_A_TERMINAL = 100


def table_width() -> int:
    """That of the terminal on stdout, or what COLUMNS says; 100 where there is neither."""
    return shutil.get_terminal_size((WITHOUT_A_TERMINAL, 24)).columns
