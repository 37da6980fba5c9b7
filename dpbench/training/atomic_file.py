"""Files that are whole or not there, whatever ends the process, and whatever the disk then holds.

A file is written beside its place under a temporary name, which its writer holds a lock on. The
lock ends with the process: so whoever comes later can tell what a dead one has left.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO

_TEMPORARY = re.compile(r".+\.[0-9a-f]{8}\.tmp")


@contextmanager
def temporary_beside(path: Path) -> Iterator[IO[bytes]]:
    """A new file in the folder of `path`, open for writing, `.name` its path.

    It is gone at the end, unless it was renamed by then.
    """
    while True:
        temporary = _temporary(path)
        with temporary.open("xb") as file:
            try:
                with suppress(OSError):  # a file system without locks: leftovers then stay there
                    fcntl.flock(file, fcntl.LOCK_EX)
                if not _is_at(file, temporary):  # taken for a leftover before it was locked
                    continue
                yield file
            finally:
                if _is_at(file, temporary):
                    temporary.unlink()
            return


def place(file: IO[bytes], path: Path) -> None:
    """Gives a file of `temporary_beside` its name; returns when that is on disk, too."""
    flush(file)
    Path(file.name).replace(path)
    _flush_folder(path.parent)


def place_also(file: IO[bytes], path: Path) -> None:
    """Gives the file a second name, before its first; a copy where the disk has one name a file."""
    flush(file)
    link = _temporary(path)
    try:
        os.link(file.name, link)  # locked with the file, as locks belong to what has the names
    except OSError:
        with temporary_beside(path) as copy, Path(file.name).open("rb") as whole:
            shutil.copyfileobj(whole, copy)
            place(copy, path)
        return
    try:
        link.replace(path)
    finally:
        link.unlink(missing_ok=True)
    _flush_folder(path.parent)


def flush(file: IO[bytes]) -> None:
    """Returns when the content is on disk."""
    file.flush()
    os.fsync(file.fileno())


def remove_leftovers(folder: Path) -> list[str]:
    """Deletes the temporary files of processes that are no more; returns their names."""
    removed = []
    for path in sorted(folder.iterdir()):
        if not _TEMPORARY.fullmatch(path.name):
            continue
        with suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # its writer is alive, or there are no locks to tell
            path.unlink()
            removed.append(path.name)
    return removed


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.{token_hex(4)}.tmp")


def _is_at(file: IO[bytes], path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
