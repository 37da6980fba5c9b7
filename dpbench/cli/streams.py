"""stdout and stderr whose reader may leave: `dpbench report … | head -1` writes its report."""

from __future__ import annotations

import io
import sys
from typing import Any


class _Forgiving(io.FileIO):
    """Drops what nobody reads any more; a command goes on, and its own exit status stands."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def forgive_readers_that_leave() -> None:
    """Replaces stdout and stderr of this process."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        old.flush()
        binary = io.BufferedWriter(_Forgiving(number, "w", closefd=False))
        new = io.TextIOWrapper(
            binary,
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=number == 2 or old.isatty(),
        )
        setattr(sys, name, new)
