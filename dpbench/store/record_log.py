"""A file of records that only grows: a JSON object per line.

Whatever ends the writing, no more than the last line is lost.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from dpbench.codec import from_json, json_bytes
from dpbench.errors import NewerSchema, StoreError
from dpbench.files import open_to_append, open_to_read, read_bytes, write_whole
from dpbench.records.trial import SCHEMA_VERSION
from dpbench.temporary import no_garbage_collection

R = TypeVar("R")
T = TypeVar("T")


class LineReader(Generic[R]):
    """Reads a file that another process appends to: every line once, when it is whole."""

    def __init__(self, path: Path, read: Callable[[str, bytes], R]) -> None:
        """`read` gets the place of a line, as in "log.jsonl:3", and the line."""
        self.rest = b""
        """The beginning of a line after the whole ones."""
        self._path = path
        self._read_line = read
        self._offset = 0
        self._lines_read = 0

    def new(self) -> list[R]:
        """Records from lines since the last call; raises the same errors as `read`."""
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
                    read.append(self._read_line(f"{self._path}:{self._lines_read}", self.rest))
                    self.rest = b""
        return read


def read_lines(
    path: Path, read: Callable[[str, bytes], R]
) -> tuple[tuple[R, ...], tuple[str, ...]]:
    """All records of a log, and warnings about what could not be read.

    Raises the errors of `read`, which gets the place of each line and the line.
    """
    if not path.exists():
        return (), (f"{path} is missing; no records read",)
    reader = LineReader(path, read)
    records = reader.new()
    if not reader.rest:
        return tuple(records), ()
    return tuple(records), (
        f"{path}: the last line is cut off ({len(reader.rest)} bytes); "
        f"read the {len(records)} before",
    )


def open_lines(path: Path, *, writer: str, if_unwritable: str) -> IO[bytes]:
    """Open an existing file for more lines, and cut off a half-written last line.

    Raises StoreError if it cannot be written, or `writer` has it open.
    """
    try:
        lines = open_to_append(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; {if_unwritable}") from None
    try:
        fcntl.flock(lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lines.close()
        is_taken = isinstance(error, BlockingIOError)
        reason = f"is in use: {writer} is writing to it" if is_taken else f"has no locks: {error}"
        raise StoreError(f"{path.parent} {reason}") from None
    lines.seek(0)
    lines.truncate(lines.read().rfind(b"\n") + 1)
    lines.seek(0, os.SEEK_END)
    return lines


def write_line(lines: IO[bytes], line: bytes) -> None:
    rest = line + b"\n"
    while rest:  # unbuffered, so that nothing is left to be written at close
        rest = rest[lines.write(rest) :]


def write_object(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object; returns when all of it is on disk."""
    write_whole(path, json_bytes(content, indent=1) + b"\n")


def write_versioned(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object with the version of the schema."""
    write_object(path, {"schema_version": SCHEMA_VERSION, **content})


def read_versioned(path: Path, kind: type[T]) -> T:
    """Read what `write_versioned` wrote, as a dataclass.

    Raises StoreError, NewerSchema, and FileNotFoundError if there is no such file.
    """
    content = parse(path, read_bytes(path))
    version = content.pop("schema_version", None)
    if not isinstance(version, int):
        raise StoreError(f"{path} has no schema_version; it was not written by dpbench")
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{path} has schema version {version}; this dpbench reads up to {SCHEMA_VERSION}. "
            "Upgrade dpbench to read it."
        )
    return decode_at(kind, path, json_bytes(content))


def parse(where: Path | str, text: str | bytes) -> dict[str, Any]:
    """The JSON object in `text`; raises StoreError."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise StoreError(f"{where}: expected an object, got {type(content).__name__}")
    return content


def decode_at(kind: type[T], where: Path | str, text: str | bytes) -> T:
    """Like codec.from_json, with the place at the beginning of the StoreError's message."""
    try:
        return from_json(kind, text)
    except StoreError as error:
        raise StoreError(f"{where}: {error}") from None
