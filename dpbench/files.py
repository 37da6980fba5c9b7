"""Files in folders of results and of trainings: whole or not there, and never somewhere else.

Such a folder may come from somebody else, and a link in it may point at any file of the reader's:
nothing is written through one. What users name themselves (the folder, --output) may be a link, or
a device. A file is written beside its place under a temporary name.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path, PurePath
from secrets import token_hex
from typing import IO

from dpbench.errors import FileError

MAX_FOLDER_NAME = 120
"""Longest folder name, out of the 255 bytes of file systems, since a time is put before it and a
number after it."""

_protected: set[Path] = set()
_TEMPORARY = re.compile(r".+\.[0-9a-f]{8}\.tmp")


def open_to_append(path: Path) -> IO[bytes]:
    """Open a regular file for reading and writing, unbuffered; it is made if it is not there, and
    its name is on disk.

    Raises FileError for anything else, which a link is too, OSError.
    """
    require_regular(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    flush_folder(path.parent)
    return os.fdopen(descriptor, "r+b", buffering=0)


def open_to_read(path: Path) -> IO[bytes]:
    """Open a regular file, or the one that a link leads to, and `protect` it.

    Raises OSError, and FileError for anything else: reading a pipe might never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError(f"{path} is not a file; expected a regular file")
    protect(path)
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    """The content of a file, under the rules of `open_to_read`."""
    with open_to_read(path) as file:
        return file.read()


def protect(path: Path) -> None:
    """Let `write_output` refuse this file from now on, because this process reads it."""
    _protected.add(path.resolve())


def require_regular(path: Path) -> None:
    """Raise FileError unless a regular file lies there, or nothing."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise FileError(f"{path} is a link or not a file; expected a regular file")


def folder_inside(folder: Path, *names: str, make: bool = False) -> Path:
    """The path of a folder in a folder, none of whose `names` is a link; with `make` they are made.

    Raises FileError if one is there and no folder, OSError if it cannot be made.
    """
    inside = folder
    for name in names:
        inside = inside / name
        if make:
            with suppress(FileExistsError):
                inside.mkdir()
        if os.path.lexists(inside) and (inside.is_symlink() or not inside.is_dir()):
            raise FileError(f"{inside} is a link or not a folder; expected a folder")
    return inside


def is_free(folder: Path) -> bool:
    """Whether a folder can be made there: nothing is there, or it is empty."""
    return not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir()))


def make_folder(folder: Path) -> None:
    """Make a folder that is free; raises FileError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        flush_folder(folder.parent)
    except OSError as error:
        raise FileError(f"cannot make {folder}: {error.strerror}") from None


def write_inside(path: Path, content: bytes) -> Path:
    """Write a file inside a folder of results; nobody ever reads half of it, whatever ends the
    process.

    Raises FileError if something else than a regular file is there, OSError.
    """
    require_regular(path)
    _replace(path, content)
    return path


def write_named(path: Path, content: bytes) -> None:
    """Write a file that the user has named: what a link points at, with the mode that it had.

    A pipe or a device is written into. Raises OSError.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
    else:
        _replace(path.resolve(), content)


def write_output(path: Path, text: str) -> None:
    """Write text into a file that the user has named; raises FileError if it cannot, or if the
    file was read here."""
    if path.resolve() in _protected:
        raise FileError(f"{path} holds what is read here; expected another file to write")
    try:
        write_named(path, text.encode())
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def _replace(path: Path, content: bytes) -> None:
    """Put a new file in the place of the path, and return when content and name are on disk."""
    temporary = path.with_name(f"{path.name}.{token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Return when the names in it are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of writers that died; nobody may be writing into the folder."""
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            path.unlink()


def folder_name(text: str) -> str:
    """The name as a part of a folder's name; of a file without its folder and suffix."""
    name = PurePath(text).name.replace(".py:", ":").removesuffix(".py")
    return re.sub(r"[^\w.,=-]", "-", name)[:MAX_FOLDER_NAME]
