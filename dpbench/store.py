"""The results of one sweep on disk: append-only, complete up to the last line that was written.

results/<name>/
  sweep.json          the specification, the command that was typed, the schema version
  environments/       one file per environment that trials ran in
  trials.jsonl        one TrialRecord a line, flushed to disk after each trial
  report/             tables and charts, made again from the above at any time
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from dpbench.codec import decode, encode
from dpbench.environment import Environment
from dpbench.errors import NewerSchema, StoreError, UsageError
from dpbench.plausibility import impossible_in_record, impossible_in_spec
from dpbench.records import SCHEMA_VERSION, TrialRecord
from dpbench.specs import SweepSpec

SWEEP_FILE = "sweep.json"
TRIALS_FILE = "trials.jsonl"
LONGEST_NAME = 200

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredSweep:
    """What a results folder holds; `warnings` tells what could not be read."""

    folder: Path
    spec: SweepSpec
    command: tuple[str, ...]
    environments: dict[str, Environment]
    records: tuple[TrialRecord, ...]
    warnings: tuple[str, ...]


class SweepStore:
    """The open results folder of a running sweep; one writer at a time."""

    def __init__(self, folder: Path, lines: IO[bytes]) -> None:
        self.folder = folder
        self._lines = lines

    @classmethod
    def create(cls, folder: Path, spec: SweepSpec, command: Sequence[str]) -> SweepStore:
        """Makes the folder; raises StoreError if it exists."""
        try:
            (folder / "environments").mkdir(parents=True)
        except FileExistsError:
            raise StoreError(
                f"{folder} exists already; choose another --name, or finish it with --resume"
            ) from None
        except OSError as error:
            raise StoreError(f"cannot make {folder}: {error.strerror}") from None
        header = {"schema_version": SCHEMA_VERSION, "command": command, "sweep": encode(spec)}
        _write_atomically(folder / SWEEP_FILE, json.dumps(header, indent=1) + "\n")
        (folder / TRIALS_FILE).touch()
        return cls.append_to(folder)

    @classmethod
    def append_to(cls, folder: Path) -> SweepStore:
        """Opens an existing folder for more trials; cuts off a half-written last line."""
        try:
            lines = (folder / TRIALS_FILE).open("r+b", buffering=0)
        except OSError as error:
            raise StoreError(
                f"cannot write {folder / TRIALS_FILE}: {error.strerror}; start a new sweep instead"
            ) from None
        try:
            fcntl.flock(lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lines.close()
            raise StoreError(f"{folder} is in use: another sweep is writing to it") from None
        _end_at_a_line(lines)
        return cls(folder, lines)

    def append(self, record: TrialRecord) -> None:
        """Adds one record and returns when it is on disk."""
        envelope = {"schema_version": SCHEMA_VERSION, "trial_id": record.trial.trial_id}
        line = json.dumps({**envelope, **encode(record)}, separators=(",", ":"), allow_nan=False)
        try:
            rest = line.encode() + b"\n"
            while rest:  # unbuffered: what does not fit must not be written later, at close
                rest = rest[self._lines.write(rest) :]
            os.fsync(self._lines.fileno())
        except OSError as error:
            raise StoreError(
                f"cannot write to {self.folder / TRIALS_FILE}: {error.strerror}; "
                "what was written before is kept, and --resume goes on from there"
            ) from None

    def add_environment(self, environment: Environment) -> None:
        path = self.folder / "environments" / f"{environment.environment_id}.json"
        path.parent.mkdir(exist_ok=True)
        _write_atomically(path, json.dumps(encode(environment), indent=1) + "\n")

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> SweepStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load(folder: Path) -> StoredSweep:
    """Reads a results folder; raises StoreError if it is not one, NewerSchema if it is too new."""
    if not (folder / SWEEP_FILE).is_file():
        if not folder.exists():
            raise StoreError(f"{folder} does not exist; expected a results folder of dpbench sweep")
        raise StoreError(
            f"{folder} is not a results folder: no {SWEEP_FILE} in it; dpbench sweep makes one"
        )
    header = _parse(folder / SWEEP_FILE, (folder / SWEEP_FILE).read_bytes())
    _check_schema(header, folder / SWEEP_FILE)
    for key in ("sweep", "command"):
        if key not in header:
            raise StoreError(f"{folder / SWEEP_FILE} lacks {key!r}; it was not written by dpbench")
    with _no_garbage_collection():
        records, warnings = _read_trials(folder / TRIALS_FILE)
    return StoredSweep(
        folder=folder,
        spec=_read_spec(folder / SWEEP_FILE, header["sweep"]),
        command=_decode(folder / SWEEP_FILE, tuple[str, ...], header["command"]),
        environments={
            path.stem: _read_environment(path)
            for path in sorted((folder / "environments").glob("*.json"))
        },
        records=records,
        warnings=warnings,
    )


def check_name(name: str) -> None:
    """Raises UsageError unless `name` is a plain folder name."""
    if not name or name in (".", "..") or {*name} & {"/", ":", "\0"}:
        raise UsageError(f"--name {name!r}: expected a plain folder name, without '/' or ':'")
    if name.startswith("-"):
        raise UsageError(f"--name {name}: that is an option; expected the name of a folder")
    if len(name.encode()) > LONGEST_NAME:
        raise UsageError(f"--name {name[:40]!r}…: expected at most {LONGEST_NAME} bytes")


def _read_spec(path: Path, content: Any) -> SweepSpec:
    spec = _decode(path, SweepSpec, content)
    if impossible := next(impossible_in_spec(spec), None):
        raise StoreError(f"{path}: {impossible}; the file was changed by hand")
    return spec


def _read_environment(path: Path) -> Environment:
    environment = _decode(path, Environment, _parse(path, path.read_bytes()))
    for entry in (*environment.versions, *environment.variables):
        if len(entry) != 2:
            raise StoreError(f"{path}: {entry} is no name with its value; it was changed by hand")
    return environment


def _read_trials(path: Path) -> tuple[tuple[TrialRecord, ...], tuple[str, ...]]:
    records: list[TrialRecord] = []
    warnings: list[str] = []
    try:
        lines = path.open("rb")
    except FileNotFoundError:
        return (), (f"{path} is missing; no trials read",)
    with lines:  # line by line: a file may be larger than memory has room for twice
        for number, line in enumerate(lines, start=1):
            if line.endswith(b"\n") or _complete(line):
                records.append(_read_trial(path, number, line))
            else:
                warnings.append(
                    f"{path}: the last line is cut off ({len(line)} bytes); "
                    f"read the {len(records)} before"
                )
    return tuple(records), tuple(warnings)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Records are kept, every one: looking for garbage among them costs a third of the reading."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _read_trial(path: Path, number: int, line: bytes) -> TrialRecord:
    where = f"{path}:{number}"
    content = _parse(where, line)
    _check_schema(content, where)
    identifier = content.pop("trial_id", None)
    record = _decode(where, TrialRecord, content)
    if record.trial.trial_id != identifier:
        raise StoreError(
            f"{where}: trial_id {identifier!r} does not match its specification "
            f"({record.trial.trial_id}); the line was changed by hand"
        )
    if impossible := next(impossible_in_record(record), None):
        raise StoreError(f"{where}: {impossible}; the line was changed by hand")
    return record


def _decode(where: Path | str, kind: type[T], value: Any) -> T:
    try:
        return decode(kind, value)
    except StoreError as error:
        raise StoreError(f"{where}: {error}") from None


def _check_schema(content: dict[str, Any], where: Path | str) -> None:
    version = content.pop("schema_version", None)
    if not isinstance(version, int):
        raise StoreError(f"{where} has no schema_version; it was not written by dpbench")
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{where} has schema version {version}; this dpbench reads up to {SCHEMA_VERSION}. "
            "Upgrade dpbench to read it."
        )


def _parse(where: Path | str, text: str | bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise StoreError(f"{where}: expected an object, got {type(content).__name__}")
    return content


def _complete(line: bytes) -> bool:
    """Tells whether a line without its newline is nevertheless whole."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _end_at_a_line(lines: IO[bytes]) -> None:
    content = lines.read()
    rest = content[content.rfind(b"\n") + 1 :]
    if _complete(rest):
        lines.write(b"\n")
    elif rest:
        lines.truncate(len(content) - len(rest))
    lines.seek(0, os.SEEK_END)


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)
