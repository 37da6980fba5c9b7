"""A bar on stderr while something runs, with lines above it."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn

REDRAWS_PER_SECOND = 2


def can_draw(console: Console) -> bool:
    """Tells whether its cursor can be moved; FORCE_COLOR makes no terminal of a file."""
    return console.file.isatty() and not console.is_dumb_terminal


class Bar:
    """A bar where the console is a terminal that can draw it; use it as a context."""

    def __init__(
        self,
        console: Console | None,
        *columns: str | ProgressColumn,
        total: int | None = None,
        **fields: Any,
    ) -> None:
        """`fields` are the first values of what the columns show as {task.fields[name]}."""
        self.console = console
        self.draws = console is not None and can_draw(console)
        self._progress = Progress(
            *columns,
            console=console,
            disable=not self.draws,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._progress.add_task("", total=total, **fields)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, **changes: Any) -> None:
        """Change the count, the total or fields."""
        self._progress.update(self._task, **changes)

    def print(self, line: str) -> None:
        """Print a line, above the bar where there is one; nothing without a console."""
        if self.console is not None:
            self.console.print(line, markup=False, soft_wrap=True)
