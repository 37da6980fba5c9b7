"""Results on disk: append-only, complete up to the last line that was written.

results/<name>/
  sweep.json          the specification, the command that was typed, the schema version
  trials.jsonl        one TrialRecord per line, flushed to disk after each trial
  comm.json           the command that was typed, the schema version
  collectives.jsonl   one CollectiveRecord per line, flushed as well
  environments/       one file per environment in which records were measured
  logs/               output of the ranks of failed trials
  report/             tables and charts, made from the above at any time

A folder holds a sweep or collectives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, Self, TypeVar

from dpbench import units
from dpbench.codec import encode, from_json, json_bytes
from dpbench.errors import StoreError, UsageError
from dpbench.files import create_empty, flush_folder, folder_inside, is_free, read_bytes
from dpbench.messages import printable
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import SCHEMA_VERSION, TrialRecord
from dpbench.specs import SweepSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.store.record_log import (
    check_schema,
    decode_at,
    open_lines,
    parse,
    read_lines,
    read_versioned,
    write_line,
    write_object,
    write_versioned,
)

SWEEP_FILE = "sweep.json"
TRIALS_FILE = "trials.jsonl"
COMM_FILE = "comm.json"
COLLECTIVES_FILE = "collectives.jsonl"
ENVIRONMENTS_FOLDER = "environments"
LOGS_FOLDER = "logs"
LONGEST_NAME = 200
MOST_TRIALS = 100_000
"""Most trials of a plan: a file of a few bytes could ask for any number."""
MOST_NAMED = 3
"""Most results folders that an error lists."""

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialLine(TrialRecord):
    """A line of trials.jsonl: the outcome of one trial."""

    schema_version: int
    trial_id: str
    """Hash of the specification in `trial`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveLine(CollectiveRecord):
    """A line of collectives.jsonl: the outcome of one measurement of a collective."""

    schema_version: int
    collective_id: str
    """Hash of the specification in `collective`."""


@dataclass(frozen=True, slots=True)
class StoredSweep:
    """The content of a results folder; `warnings` lists what could not be read."""

    folder: Path
    spec: SweepSpec
    command: tuple[str, ...]
    environments: dict[str, Environment]
    records: tuple[TrialRecord, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredCollectives:
    """The collectives in a results folder; `warnings` lists what could not be read."""

    folder: Path
    command: tuple[str, ...]
    environments: dict[str, Environment]
    records: tuple[CollectiveRecord, ...]
    warnings: tuple[str, ...]


class OpenStore(Generic[R]):
    """A results folder that is open for more records of one kind; one writer at a time."""

    file: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: IO[bytes] = open_lines(
            folder / self.file, writer="another dpbench", if_unwritable="choose another --name"
        )

    def _identity(self, record: R) -> dict[str, str]:
        """The name and the value of the record's identifier."""
        raise NotImplementedError

    def append(self, record: R) -> None:
        """Add one record; returns when it is on disk."""
        fields = {**encode(record), "schema_version": SCHEMA_VERSION, **self._identity(record)}
        try:
            write_line(self._lines, json_bytes(fields))
            os.fsync(self._lines.fileno())
        except OSError as error:
            raise StoreError(
                f"cannot write to {self.folder / self.file}: {error.strerror}; earlier records are "
                "kept, and dpbench sweep continues from there with the same --name and --resume"
            ) from None

    def add_environment(self, environment: Environment) -> None:
        inside = folder_inside(self.folder, ENVIRONMENTS_FOLDER, make=True)
        write_object(inside / f"{environment.environment_id}.json", encode(environment))

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SweepStore(OpenStore[TrialRecord]):
    """The open results folder of a running sweep."""

    file = TRIALS_FILE

    @classmethod
    def create(cls, folder: Path, spec: SweepSpec, command: Sequence[str]) -> SweepStore:
        """Make the folder; raises StoreError if it exists and holds something."""
        require_free(folder)
        _make(folder)
        create_empty(folder / TRIALS_FILE)
        made = cls(folder)
        write_versioned(folder / SWEEP_FILE, {"command": command, "sweep": encode(spec)})
        return made

    def _identity(self, record: TrialRecord) -> dict[str, str]:
        return {"trial_id": record.trial.trial_id}


class CollectiveStore(OpenStore[CollectiveRecord]):
    """The open results folder of a running `dpbench comm`."""

    file = COLLECTIVES_FILE

    @classmethod
    def create(cls, folder: Path, command: Sequence[str]) -> CollectiveStore:
        """Make the folder; raises StoreError if it exists and holds something."""
        require_free(folder)
        _make(folder)
        create_empty(folder / COLLECTIVES_FILE)
        made = cls(folder)
        write_versioned(folder / COMM_FILE, {"command": command})
        return made

    def _identity(self, record: CollectiveRecord) -> dict[str, str]:
        return {"collective_id": record.collective.collective_id}


def require_free(folder: Path) -> None:
    """Raise StoreError if new results would overwrite something."""
    if not is_free(folder):
        raise StoreError(
            f"{folder} already exists; choose another --name, or finish a sweep with --resume"
        )


def holds_sweep(folder: Path) -> bool:
    return os.path.lexists(folder / SWEEP_FILE)


def holds_collectives(folder: Path) -> bool:
    return os.path.lexists(folder / COMM_FILE)


def load(folder: Path) -> StoredSweep:
    """Read a results folder; raises StoreError if it is not one, NewerSchema if it is too new."""
    header = _read_header(folder, SWEEP_FILE, "dpbench sweep")
    path = folder / SWEEP_FILE
    spec = decode_at(path, SweepSpec, _member(path, header, "sweep"))
    if spec.most_trials > MOST_TRIALS:
        raise StoreError(
            f"{path}: a plan of {spec.most_trials:,} trials; expected at most {MOST_TRIALS:,}"
        )
    command = decode_at(path, tuple[str, ...], _member(path, header, "command"))
    records, warnings = read_lines(folder / TRIALS_FILE, _reader(TrialLine, TrialRecord))
    # An implementation may be a file of the user who measured it.
    if unknown := {record.trial.implementation for record in records} - IMPLEMENTATIONS.keys():
        raise StoreError(
            f"{folder}: this dpbench has no implementation {min(unknown)!r}; expected one of "
            f"{', '.join(IMPLEMENTATIONS)}"
        )
    return StoredSweep(folder, spec, command, _read_environments(folder), records, warnings)


def load_collectives(folder: Path) -> StoredCollectives:
    """Read the collectives of a results folder; raises StoreError if it holds none, NewerSchema
    if it is too new."""
    header = _read_header(folder, COMM_FILE, "dpbench comm")
    path = folder / COMM_FILE
    command = decode_at(path, tuple[str, ...], _member(path, header, "command"))
    read = _reader(CollectiveLine, CollectiveRecord)
    records, warnings = read_lines(folder / COLLECTIVES_FILE, read)
    return StoredCollectives(folder, command, _read_environments(folder), records, warnings)


def check_name(name: str) -> None:
    """Raise UsageError unless `name` is a plain folder name."""
    is_plain = name not in ("", ".", "..") and not {*name} & {"/", ":"} and name.isprintable()
    if not is_plain or name.startswith("-") or len(name.encode()) > LONGEST_NAME:
        raise UsageError(
            f"--name {name[:40]!r}: expected a plain folder name of at most {LONGEST_NAME} bytes "
            "of UTF-8, without '/', ':' or control characters, that does not begin with '-'"
        )


def _make(folder: Path) -> None:
    try:
        (folder / ENVIRONMENTS_FOLDER).mkdir(parents=True, exist_ok=True)
        flush_folder(folder.parent)
    except OSError as error:
        raise StoreError(f"cannot make {folder}: {error.strerror}") from None


def _read_header(folder: Path, file: str, maker: str) -> dict[str, Any]:
    if not os.path.lexists(folder / file):
        lack = f"has no {file}" if folder.exists() else "does not exist"
        inside = [str(path.parent) for path in sorted(folder.glob(f"*/{file}"), reverse=True)]
        named = f": {units.some_of(inside, MOST_NAMED)}" if inside else ""
        raise StoreError(f"{folder} {lack}; expected a results folder of {maker}{named}")
    return read_versioned(folder / file)


def _member(path: Path, header: Mapping[str, Any], key: str) -> Any:
    if key not in header:
        raise StoreError(f"{path} lacks {key!r}; it was not written by dpbench")
    return header[key]


def _reader(kind: Any, record: Any) -> Callable[[str, bytes], Any]:
    """A function that reads one line of `kind` at a place."""

    def read(where: str, text: bytes) -> Any:
        try:
            line = from_json(kind, text)
        except StoreError as error:
            # A later version may have other fields.
            check_schema(where, parse(where, text).get("schema_version"))
            raise StoreError(f"{where}: {error}") from None
        check_schema(where, line.schema_version)
        return record(**{field.name: getattr(line, field.name) for field in fields(record)})

    return read


def _read_environments(folder: Path) -> dict[str, Environment]:
    paths = sorted(folder_inside(folder, ENVIRONMENTS_FOLDER).glob("*.json"))
    return {
        printable(path.stem, LONGEST_NAME): decode_at(
            path, Environment, parse(path, read_bytes(path))
        )
        for path in paths
    }
