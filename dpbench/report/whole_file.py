"""Files that are there at once or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], None]) -> Path:
    """Writes beside the file and renames, so that nobody ever reads half of it.

    The file that a link points at, with the mode that it had. What is no regular file, as a pipe
    or a device, is written into: there is nothing to keep whole.
    """
    if path.exists() and not path.is_file():
        write(path)
        return path
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if target.exists():
            temporary.touch()
            shutil.copymode(target, temporary)
        write(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_whole_text(path: Path, text: str) -> Path:
    """The same of text, as UTF-8, with the ends of lines that it has."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8", newline="")

    return write_whole(path, write)
