"""Files in folders of results and of trainings: whole or not there, and never somewhere else.

Such a folder may come from somebody else, and a link in it may point at any file of the reader's; a
pipe in it would keep the reader waiting. So everything inside must be a regular file or a folder.
What users name themselves (the folder, --output) may be a link, or a device.

A file is written beside its place under a temporary name, which its writer holds a lock on. The
lock ends with the process, so that the next writer can tell what a dead one has left.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO

from dpbench.errors import StoreError

LARGEST_HEADER_BYTES = 2**26
"""Largest file that is read as a whole; such files have some KiB."""
_TEMPORARY = re.compile(r".+\.[0-9a-f]{8}\.tmp")
_KINDS = {
    stat.S_IFLNK: "a link, which dpbench does not follow there",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a regular file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_to_read(path: Path, *, named_by_user: bool = False) -> IO[bytes]:
    """Opens a regular file, and waits for nobody.

    Raises StoreError for anything else, which a link is too unless the user has named it himself;
    OSError as `open` does.
    """
    follow = 0 if named_by_user else os.O_NOFOLLOW
    return os.fdopen(_open_regular(path, os.O_RDONLY | follow), "rb")


def open_to_append(path: Path) -> IO[bytes]:
    """Opens a regular file that exists for reading and writing, unbuffered; raises as
    `open_to_read`."""
    return os.fdopen(_open_regular(path, os.O_RDWR | os.O_NOFOLLOW), "r+b", buffering=0)


def read_header(path: Path) -> bytes:
    """The content of a small file; raises as `open_to_read`, and StoreError if it is large."""
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size > LARGEST_HEADER_BYTES:
            raise StoreError(f"{path}: more than 64 MiB; it was not written by dpbench")
        return file.read()


def create_empty(path: Path) -> None:
    """Makes the file unless it is there; raises StoreError if something else is."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except FileExistsError:
        require_regular(path)
    flush_folder(path.parent)


def require_regular(path: Path) -> None:
    """Raises StoreError unless a regular file lies there, or nothing."""
    with suppress(FileNotFoundError):
        _require(path, path.lstat(), stat.S_IFREG)


def folder_inside(folder: Path, *names: str, make: bool = False) -> Path:
    """The path of a folder in a folder, none of whose `names` is a link; with `make` they are made.

    Raises StoreError if one is there and no folder, OSError if it cannot be made.
    """
    inside = folder
    for name in names:
        inside = inside / name
        if make:
            with suppress(FileExistsError):
                inside.mkdir()
        with suppress(FileNotFoundError):
            _require(inside, inside.lstat(), stat.S_IFDIR)
    return inside


def is_free(folder: Path) -> bool:
    """Whether a folder can be made there: nothing is there, or only empty and half-written files of
    a maker that died before it had begun."""
    if not os.path.lexists(folder):
        return True
    if not folder.is_dir():
        return False
    for path in folder.rglob("*"):
        found = path.lstat()
        is_empty = stat.S_ISREG(found.st_mode) and not found.st_size
        is_half_written = stat.S_ISREG(found.st_mode) and _TEMPORARY.fullmatch(path.name)
        if not (is_empty or is_half_written or stat.S_ISDIR(found.st_mode)):
            return False
    return True


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Writes a file inside a folder; nobody ever reads half of it, whatever ends the process.

    Raises StoreError if something else than a regular file is there, OSError.
    """
    require_regular(path)
    with temporary_beside(path) as file:
        write(file)
        place(file, path)
    return path


def write_named(path: Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Writes a file that the user has named: what a link points at, with the mode that it had.

    A pipe or a device is written into. Raises OSError.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            write(file)
        return path
    target = path.resolve()
    with temporary_beside(target) as file:
        if target.exists():
            shutil.copymode(target, file.name)
        write(file)
        place(file, target)
    return path


def as_text(text: str) -> Callable[[IO[bytes]], object]:
    """Writes it as UTF-8, with the ends of lines that it has."""
    return lambda file: file.write(text.encode())


def write_text(path: Path, text: str) -> None:
    """Writes a file that the user has named. Raises StoreError if it cannot."""
    write_file(path, as_text(text))


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """The same; `write` gets the file to write to."""
    try:
        write_named(path, write)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def temporary_beside(path: Path) -> Iterator[IO[bytes]]:
    """A new file in the folder of `path`, open for writing, `.name` its path.

    It is gone at the end, unless it was renamed by then.
    """
    temporary = path.with_name(f"{path.name}.{token_hex(4)}.tmp")
    with temporary.open("xb") as file:
        try:
            with suppress(OSError):  # a file system without locks: leftovers then stay there
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            if _is_at(file, temporary):
                temporary.unlink()


def place(file: IO[bytes], path: Path) -> None:
    """Gives a file of `temporary_beside` its name; returns when content and name are on disk."""
    require_regular(path)
    file.flush()
    os.fsync(file.fileno())
    Path(file.name).replace(path)
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Returns when the names in it are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> list[str]:
    """Deletes the temporary files of processes that are no more; returns their names."""
    removed = []
    for path in sorted(folder.iterdir()):
        if not _TEMPORARY.fullmatch(path.name):
            continue
        with suppress(FileNotFoundError, StoreError), open_to_read(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # its writer is alive, or there are no locks to tell
            path.unlink()
            removed.append(path.name)
    return removed


def _open_regular(path: Path, flags: int) -> int:
    """Opens a regular file, without waiting for a writer if it is a pipe."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR):
            require_regular(path)
        raise
    try:
        _require(path, os.fstat(descriptor), stat.S_IFREG)
    except StoreError:
        os.close(descriptor)
        raise
    return descriptor


def _require(path: Path, found: os.stat_result, kind: int) -> None:
    """Raises StoreError unless a file is of that kind."""
    if (got := stat.S_IFMT(found.st_mode)) != kind:
        raise StoreError(f"{path} is {_KINDS[got]}; expected {_KINDS[kind]}")


def _is_at(file: IO[bytes], path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False
