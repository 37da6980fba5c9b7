"""Files in folders of results and of trainings: objects that are written whole, and logs that only
grow, by a JSON object in a line.

Such a folder may come from somebody else, and a link in it may point at any file of the reader's:
nothing is written through one. What users name themselves (the folder, --output) may be a link, or
a device. A file is written beside its place under a temporary name, and of a log no more than the
last line is lost, whatever ends the writer.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from secrets import token_hex
from typing import IO, Any, Generic, TypeVar

from dpbench.codec import encode, from_json, json_bytes
from dpbench.errors import FileError, near_path
from dpbench.temporary import no_garbage_collection

R = TypeVar("R")
T = TypeVar("T")

MAX_FOLDER_NAME = 120
"""Longest folder name, out of the 255 bytes of file systems, since a time is put before it and a
number after it."""

_protected: set[Path] = set()
_TEMPORARY = re.compile(r".+\.[0-9a-f]{8}\.tmp")


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
    """The content of a file, under the rules of `open_to_read`; raises FileError."""
    with _errors_as("cannot read", path), open_to_read(path) as file:
        return file.read()


def protect(path: Path) -> None:
    """Let `write_output` refuse this file from now on, because this process reads it."""
    _protected.add(path.resolve())


def _require_regular(path: Path) -> None:
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


def require_free(folder: Path, otherwise: str) -> None:
    """Raise FileError, which says what to do `otherwise`, unless a folder can be made there."""
    if not is_free(folder):
        raise FileError(f"{folder} already exists; choose another --name, or {otherwise}")


def make_folder(folder: Path) -> None:
    """Make a folder that is free; raises FileError."""
    with _errors_as("cannot make", folder):
        folder.mkdir(parents=True, exist_ok=True)
        _flush(folder.parent)


@contextmanager
def _errors_as(what: str, path: Path, remedy: str = "") -> Iterator[None]:
    """A context whose OSErrors are FileErrors, which begin with these words."""
    try:
        yield
    except OSError as error:
        near = near_path(path) if isinstance(error, FileNotFoundError) else ""
        raise FileError(f"{what} {path}: {error.strerror or error}{remedy}{near}") from None


def write_inside(path: Path, content: bytes) -> Path:
    """Write a file inside a folder of results; nobody ever reads half of it, whatever ends the
    process.

    Raises FileError, also if something else than a regular file is there.
    """
    _require_regular(path)
    with _errors_as("cannot write", path):
        _replace(path, content)
    return path


def write_object(path: Path, value: Any) -> None:
    """Write a dataclass as a JSON object; returns when it is on disk. Raises FileError."""
    write_inside(path, json_bytes(encode(value), indent=1) + b"\n")


def read_object(path: Path, kind: type[T]) -> T:
    """Read what `write_object` wrote; raises FileError."""
    content = read_bytes(path)
    try:
        return from_json(kind, content)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


def write_named(path: Path, content: bytes) -> None:
    """Write a file that the user has named: what a link points at, with the mode that it had.

    A pipe or a device is written into. Raises FileError.
    """
    with _errors_as("cannot write", path):
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            _replace(path.resolve(), content)


def write_output(path: Path, text: str) -> None:
    """Write text into a file that the user has named; raises FileError if it cannot, or if the
    file was read here."""
    if path.resolve() in _protected:
        raise FileError(f"{path} holds what is read here; expected another file to write")
    write_named(path, text.encode())


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
    _flush(path.parent)


def _flush(folder: Path) -> None:
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


class LineReader(Generic[R]):
    """Reads a file that another process appends to: every line once, when it is whole."""

    def __init__(self, path: Path, read: Callable[[bytes], R]) -> None:
        """`read` makes a record of a line, or raises FileError."""
        self.rest = b""
        """The beginning of a line after the whole ones."""
        self._path = path
        self._read_line = read
        self._offset = 0
        self._lines_read = 0

    def new(self) -> list[R]:
        """Records from lines since the last call; raises FileError with the place of the line."""
        try:
            file = open_to_read(self._path)
        except FileNotFoundError:
            return []
        read: list[R] = []
        # All records are kept: looking for garbage among them takes a third of the time.
        with file, no_garbage_collection():
            file.seek(self._offset)
            for self.rest in file:
                if self.rest.endswith(b"\n"):
                    self._offset += len(self.rest)
                    self._lines_read += 1
                    try:
                        read.append(self._read_line(self.rest))
                    except FileError as error:
                        place = f"{self._path}:{self._lines_read}"
                        raise FileError(f"{place}: {error}") from None
                    self.rest = b""
        return read


class LineWriter:
    """Appends lines to a file, which no other process can do meanwhile."""

    def __init__(self, path: Path, *, writer: str, if_lost: str) -> None:
        """Make the file if it is not there, and cut off a last line that is half written.

        Raises FileError if the file cannot be written, is a link or no file, or `writer` has it
        open; `if_lost` says what remains if a line cannot be added."""
        self._path, self._if_lost = path, if_lost
        _require_regular(path)
        with _errors_as("cannot write", path, "; choose another --name"):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)
            _flush(path.parent)  # its name is on disk, too
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            is_taken = isinstance(error, BlockingIOError)
            in_use = f"is in use: {writer} is writing to it"
            reason = in_use if is_taken else f"has no locks: {error}"
            raise FileError(f"{path.parent} {reason}") from None
        self._file.seek(0)
        self._file.truncate(self._file.read().rfind(b"\n") + 1)
        self._file.seek(0, os.SEEK_END)

    def append(self, line: bytes, *, sync: bool) -> None:
        """Add a line, and with `sync` return when it is on disk; raises FileError."""
        rest = line + b"\n"
        with _errors_as("cannot write to", self._path, f"; {self._if_lost}"):
            while rest:  # unbuffered, so that nothing is left to be written at close
                rest = rest[self._file.write(rest) :]
            if sync:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
