"""The files that options name, written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO

from dpbench.errors import StoreError
from dpbench.files import as_text, write_named


def write_text(path: Path, text: str) -> None:
    """Raises StoreError if it cannot."""
    write_file(path, as_text(text))


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """`write` gets the file to write to. Raises StoreError if it cannot."""
    try:
        write_named(path, write)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
