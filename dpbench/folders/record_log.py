"""Files of a results folder or a run folder: logs that only grow, a JSON object per line, and
objects that are written whole.

Whatever ends the writing of a log, no more than the last line is lost.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from dpbench.codec import encode, from_json, json_bytes
from dpbench.errors import FileError
from dpbench.files import open_to_append, open_to_read, read_bytes, write_inside
from dpbench.messages import option_words
from dpbench.temporary import no_garbage_collection

R = TypeVar("R")
T = TypeVar("T")


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
                    with about(f"{self._path}:{self._lines_read}"):
                        read.append(self._read_line(self.rest))
                    self.rest = b""
        return read


class LineWriter:
    """Appends lines to a file, which no other process can do meanwhile."""

    def __init__(self, path: Path, *, writer: str, if_lost: str) -> None:
        """Cuts off a last line that is half written. Raises FileError if the file cannot be
        written, or `writer` has it open; `if_lost` says what remains if a line cannot be added."""
        self._path, self._if_lost = path, if_lost
        try:
            self._file = open_to_append(path)
        except OSError as error:
            raise FileError(
                f"cannot write {path}: {error.strerror}; choose another {option_words('name')}"
            ) from None
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
        try:
            while rest:  # unbuffered, so that nothing is left to be written at close
                rest = rest[self._file.write(rest) :]
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise FileError(
                f"cannot write to {self._path}: {error.strerror}; {self._if_lost}"
            ) from None

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path, kind: type[R]) -> tuple[tuple[R, ...], tuple[str, ...]]:
    """All records of a log, and warnings about what could not be read; raises FileError."""
    if not path.exists():
        return (), (f"{path} is missing; no records read",)
    reader = LineReader(path, lambda line: from_json(kind, line))
    records = reader.new()
    if not reader.rest:
        return tuple(records), ()
    return tuple(records), (
        f"{path}: the last line is cut off ({len(reader.rest)} bytes); "
        f"read the {len(records)} before",
    )


def write_object(path: Path, value: Any) -> None:
    """Write a dataclass as a JSON object; returns when it is on disk."""
    write_inside(path, json_bytes(encode(value), indent=1) + b"\n")


def read_object(path: Path, kind: type[T]) -> T:
    """Read what `write_object` wrote; raises FileError, and OSError."""
    content = read_bytes(path)
    with about(path):
        return from_json(kind, content)


@contextmanager
def about(place: object) -> Iterator[None]:
    """Begin the message of a FileError with the place that it is about."""
    try:
        yield
    except FileError as error:
        raise FileError(f"{place}: {error}") from None
