"""What a view that changes asks of where it is shown."""

from __future__ import annotations

from rich.console import Console

REDRAWS_PER_SECOND = 2


def can_draw(console: Console) -> bool:
    """Whether it moves a cursor; FORCE_COLOR makes no terminal of a file."""
    return console.file.isatty() and not console.is_dumb_terminal
