"""The files that options name, written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpbench.errors import StoreError


def write_text(path: Path, text: str) -> None:
    """Raises StoreError if it cannot."""
    from dpbench.report.whole_file import write_whole_text

    _write(path, lambda: write_whole_text(path, text))


def write_file(path: Path, write: Callable[[Path], None]) -> None:
    """`write` gets the path to write to. Raises StoreError if it cannot."""
    from dpbench.report.whole_file import write_whole

    _write(path, lambda: write_whole(path, write))


def _write(path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
