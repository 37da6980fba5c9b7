"""A file of records that only grows: a JSON object a line, on disk as soon as it is appended.

Whatever ends the writing, no more than the last line is lost, and one that was cut off is told
apart from one that was changed by hand.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar, cast

from dpbench.codec import decode, encode, from_json
from dpbench.errors import NewerSchema, StoreError
from dpbench.files import as_text, open_to_append, open_to_read, read_header, write_whole
from dpbench.messages import printable
from dpbench.records.trial import SCHEMA_VERSION
from dpbench.temporary import no_garbage_collection

LONGEST_LINE_BYTES = 2**28
"""The longest record; a trial of a million steps on eight ranks takes half of it."""
LONGEST_SHOWN = 300
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFormat(Generic[R]):
    """Properties of one kind of record, and the texts of its errors."""

    kind: type[R]
    line: Callable[..., R]
    """The record with its schema version and identifier, as one line of the file holds it."""
    identifier_key: str
    """Field of a line with the hash of what was asked for."""
    identifier: Callable[[R], str]
    noun: str
    """Name of the records, in the plural."""
    writer: str
    """Description of another process that may be writing."""
    if_unwritable: str
    if_full: str
    """Advice for a full disk."""


class RecordLog(Generic[R]):
    """A file that is open for more records; one writer at a time."""

    def __init__(self, path: Path, form: LogFormat[R]) -> None:
        """Opens a file that exists; cuts off a half-written last line."""
        self._path = path
        self._form = form
        self._lines = open_lines(path, writer=form.writer, if_unwritable=form.if_unwritable)

    def append(self, record: R) -> None:
        """Adds one record and returns when it is on disk."""
        form = self._form
        identifier = {form.identifier_key: form.identifier(record)}
        content = _content(form, record)
        line = form.line(schema_version=SCHEMA_VERSION, **identifier, **content)
        try:
            write_line(self._lines, json.dumps(encode(line), separators=(",", ":")))
            os.fsync(self._lines.fileno())
        except OSError as error:
            raise StoreError(
                f"cannot write to {self._path}: {error.strerror}; {form.if_full}"
            ) from None

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LineReader(Generic[R]):
    """Reads a file that somebody else appends to: every line once, when it is whole."""

    def __init__(self, path: Path, read: Callable[[str, bytes], R]) -> None:
        """`read` gets the place of a line, as in "log.jsonl:3", and the line."""
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
        with file, no_garbage_collection():  # see read_log
            read: list[R] = []
            while True:
                file.seek(self._offset)
                content = file.read(LONGEST_LINE_BYTES)
                whole = content[: content.rfind(b"\n") + 1]
                if not whole:
                    _check_length(f"{self._path}:{self._lines_read + 1}", content)
                    return read
                self._offset += len(whole)
                read += [self._read(line) for line in whole.splitlines()]

    def _read(self, line: bytes) -> R:
        self._lines_read += 1
        return self._read_line(f"{self._path}:{self._lines_read}", line)


def open_lines(path: Path, *, writer: str, if_unwritable: str) -> IO[bytes]:
    """Opens a file that exists for more lines; cuts off a half-written last one.

    Raises StoreError where it cannot be written, or `writer` has it open.
    """
    try:
        lines = open_to_append(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; {if_unwritable}") from None
    try:
        fcntl.flock(lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lines.close()
        raise StoreError(f"{path.parent} is in use: {writer} is writing to it") from None
    try:
        _end_at_a_line(lines, path)
    except StoreError:
        lines.close()
        raise
    return lines


def write_line(lines: IO[bytes], line: str) -> None:
    rest = line.encode() + b"\n"
    while rest:  # unbuffered: what does not fit must not be written later, at close
        rest = rest[lines.write(rest) :]


def read_log(path: Path, form: LogFormat[R]) -> tuple[tuple[R, ...], tuple[str, ...]]:
    """All records, and warnings of what could not be read; raises StoreError, NewerSchema."""
    records: list[R] = []
    warnings: list[str] = []
    try:
        lines = open_to_read(path)
    except FileNotFoundError:
        return (), (f"{path} is missing; no {form.noun} read",)
    # Records are kept, every one: looking for garbage among them costs a third of the reading.
    with lines, no_garbage_collection():
        # A file may be larger than memory twice, but no line of it.
        for number, line in enumerate(iter(lambda: lines.readline(LONGEST_LINE_BYTES), b""), 1):
            _check_length(f"{path}:{number}", line)
            if line.endswith(b"\n") or _complete(line):
                records.append(_read_record(f"{path}:{number}", line, form))
            else:
                warnings.append(
                    f"{path}: the last line is cut off ({len(line)} bytes); "
                    f"read the {len(records)} before"
                )
    return tuple(records), tuple(warnings)


def write_object(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON object; returns when all of it is on disk."""
    write_whole(path, as_text(json.dumps(content, indent=1) + "\n"))


def write_versioned(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON object with the version of the schema in front."""
    write_object(path, {"schema_version": SCHEMA_VERSION, **content})


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises StoreError, and FileNotFoundError if there is none."""
    return parse(path, read_header(path))


def read_versioned(path: Path) -> dict[str, Any]:
    """Read an object that `write_versioned` wrote; raises NewerSchema too."""
    content = read_object(path)
    check_schema(content, path)
    return content


def parse(where: Path | str, text: str | bytes) -> dict[str, Any]:
    """The JSON object in `text`; raises StoreError."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise StoreError(f"{where}: expected an object, got {type(content).__name__}")
    return content


def check_schema(content: dict[str, Any], where: Path | str) -> None:
    """Takes the schema version out of `content`; raises StoreError, NewerSchema."""
    version = content.pop("schema_version", None)
    if not isinstance(version, int):
        raise StoreError(f"{where} has no schema_version; it was not written by dpbench")
    _require_known(version, where)


def _require_known(version: int, where: Path | str) -> None:
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{where} has schema version {version}; this dpbench reads up to {SCHEMA_VERSION}. "
            "Upgrade dpbench to read it."
        )


def decode_at(where: Path | str, kind: type[T], value: Any) -> T:
    """Like codec.decode, with the place in front of the StoreError's message."""
    try:
        return decode(kind, value)
    except StoreError as error:
        raise StoreError(f"{where}: {error}") from None


def _content(form: LogFormat[R], record: R) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(form.kind)}  # type: ignore[arg-type]


def _read_record(where: str, text: bytes, form: LogFormat[R]) -> R:
    try:
        line = from_json(cast(type[R], form.line), text)
    except StoreError as error:
        check_schema(parse(where, text), where)  # a later version may have other fields
        raise StoreError(f"{where}: {error}") from None
    _require_known(line.schema_version, where)  # type: ignore[attr-defined]
    record = form.kind(**_content(form, line))
    identifier, stored = form.identifier(record), getattr(line, form.identifier_key)
    if identifier != stored:
        raise StoreError(
            f"{where}: {form.identifier_key} {printable(repr(stored), LONGEST_SHOWN)} does not "
            f"match its specification ({identifier}); the line was changed by hand"
        )
    return record


def _check_length(where: str, line: bytes) -> None:
    if len(line) == LONGEST_LINE_BYTES and not line.endswith(b"\n"):
        raise StoreError(f"{where}: longer than 256 MiB; it was not written by dpbench")


def _complete(line: bytes) -> bool:
    """Tells whether a line without its newline is nevertheless whole."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _end_at_a_line(lines: IO[bytes], path: Path) -> None:
    """Reads the last line alone."""
    length = lines.seek(0, os.SEEK_END)
    start = lines.seek(max(0, length - LONGEST_LINE_BYTES))
    content = lines.read()
    rest = content[content.rfind(b"\n") + 1 :]
    if start and len(rest) == len(content):
        raise StoreError(f"{path}: the last line was not written by dpbench")
    if _complete(rest):
        lines.write(b"\n")
    elif rest:
        lines.truncate(length - len(rest))
    lines.seek(0, os.SEEK_END)
