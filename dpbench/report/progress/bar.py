"""A bar on a terminal while something runs, with lines above it."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn

REDRAWS_PER_SECOND = 2


def can_draw(console: Console) -> bool:
    """Tells whether its cursor can be moved; FORCE_COLOR makes no terminal of a file."""
    return console.file.isatty() and not console.is_dumb_terminal and not console.quiet


def progress_bar(console: Console, *columns: str | ProgressColumn) -> Progress:
    """A context that draws a bar, but only where the console can draw; lines are printed in any
    case."""
    return Progress(
        *columns,
        console=console,
        disable=not can_draw(console),
        refresh_per_second=REDRAWS_PER_SECOND,
        transient=True,
        redirect_stdout=False,
    )


def print_line(progress: Progress, line: str) -> None:
    """Prints a line above the bar, if there is one."""
    progress.console.print(line, markup=False, soft_wrap=True)
