"""Results on disk: append-only, complete up to the last line that was written.

results/<name>/
  sweep.json          the specification, the command that was typed, the schema version
  trials.jsonl        one TrialRecord a line, flushed to disk after each trial
  comm.json           the command that first added collectives, the schema version
  collectives.jsonl   one CollectiveRecord a line, flushed as well
  environments/       one file per environment that records were measured in
  logs/               what the ranks of failed trials printed
  traces/             timelines of steps, where they were asked for
  report/             tables and charts, made again from the above at any time

A folder holds a sweep, collectives, or both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpbench.codec import encode
from dpbench.errors import StoreError, UsageError
from dpbench.files import create_empty, flush_folder, folder_inside, is_free
from dpbench.messages import printable
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.specs import SweepSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.store.record_log import (
    LogFormat,
    RecordLog,
    decode_at,
    read_log,
    read_object,
    read_versioned,
    write_object,
    write_versioned,
)

SWEEP_FILE = "sweep.json"
TRIALS_FILE = "trials.jsonl"
COMM_FILE = "comm.json"
COLLECTIVES_FILE = "collectives.jsonl"
ENVIRONMENTS_FOLDER = "environments"
LOGS_FOLDER = "logs"
TRACES_FOLDER = "traces"
LONGEST_NAME = 200
MEASURING = ("sweep", "check", "comm")
"""Commands that make results. A folder from elsewhere may name another one, and a reader who is
told to repeat it runs it: `dpbench launch` starts any program."""

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


_TRIALS = LogFormat(
    kind=TrialRecord,
    line=TrialLine,
    identifier_key="trial_id",
    identifier=lambda record: record.trial.trial_id,
    noun="trials",
    writer="another sweep",
    if_unwritable="start a new sweep instead",
    if_full="what was written before is kept, and --resume goes on from there",
)
_COLLECTIVES = LogFormat(
    kind=CollectiveRecord,
    line=CollectiveLine,
    identifier_key="collective_id",
    identifier=lambda record: record.collective.collective_id,
    noun="collectives",
    writer="another dpbench comm",
    if_unwritable="choose another --name instead",
    if_full="what was written before is kept, and the same --name goes on from there",
)


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


class OpenStore(RecordLog[R]):
    """A results folder that is open for more records of one kind; one writer at a time."""

    @property
    def folder(self) -> Path:
        return self._path.parent

    def add_environment(self, environment: Environment) -> None:
        inside = folder_inside(self.folder, ENVIRONMENTS_FOLDER, make=True)
        write_object(inside / f"{environment.environment_id}.json", encode(environment))


class SweepStore(OpenStore[TrialRecord]):
    """The open results folder of a running sweep."""

    @classmethod
    def create(
        cls,
        folder: Path,
        spec: SweepSpec,
        command: Sequence[str],
        options: Mapping[str, Any] | None = None,
    ) -> SweepStore:
        """Makes the folder; `options` are those that --resume reads again.

        Raises StoreError if the folder exists and holds something.
        """
        require_free(folder)
        _make(folder)
        create_empty(folder / TRIALS_FILE)
        made = cls.append_to(folder)  # nobody else makes it from now on
        try:
            require_free(folder)
            header = {"command": command, "sweep": encode(spec)}
            if options is not None:
                header["options"] = options
            write_versioned(folder / SWEEP_FILE, header)
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def append_to(cls, folder: Path) -> SweepStore:
        """Opens an existing folder for more trials; cuts off a half-written last line."""
        return cls(folder / TRIALS_FILE, _TRIALS)


class CollectiveStore(OpenStore[CollectiveRecord]):
    """The results folder of a running `dpbench comm`, which may be that of a sweep."""

    @classmethod
    def append_to(cls, folder: Path, command: Sequence[str]) -> CollectiveStore:
        """Opens a results folder for more collectives, or makes it.

        Raises StoreError if something else lies there.
        """
        check_place(folder)
        if not folder.exists():
            _make(folder)
        if not holds_collectives(folder):
            write_versioned(folder / COMM_FILE, {"command": command})
        create_empty(folder / COLLECTIVES_FILE)
        return cls(folder / COLLECTIVES_FILE, _COLLECTIVES)


def check_place(folder: Path) -> None:
    """Raises StoreError if collectives can neither be added to a folder nor make it."""
    if folder.exists():
        if not (holds_sweep(folder) or holds_collectives(folder)):
            raise StoreError(
                f"{folder} exists and is no results folder; expected one to add to, or another "
                "--name"
            )
        return
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir():
        raise StoreError(f"cannot make {folder}: {above} is no folder")


def require_free(folder: Path) -> None:
    """Raises StoreError if there is something that a new sweep must leave alone."""
    if not is_free(folder):
        raise StoreError(
            f"{folder} exists already; choose another --name, or finish it with --resume"
        )


def holds_sweep(folder: Path) -> bool:
    """Whether there is something of that name, which whoever opens it will look at."""
    return os.path.lexists(folder / SWEEP_FILE)


def holds_collectives(folder: Path) -> bool:
    return os.path.lexists(folder / COMM_FILE)


def load(folder: Path) -> StoredSweep:
    """Reads a results folder; raises StoreError if it is not one, NewerSchema if it is too new."""
    spec, command = load_header(folder)
    records, warnings = read_log(folder / TRIALS_FILE, _TRIALS)
    # Whoever measured it may have an implementation of their own.
    if unknown := {record.trial.implementation for record in records} - IMPLEMENTATIONS.keys():
        raise StoreError(
            f"{folder}: this dpbench has no implementation {min(unknown)!r}; expected one of "
            f"{', '.join(IMPLEMENTATIONS)}"
        )
    return StoredSweep(
        folder=folder,
        spec=spec,
        command=command,
        environments=_read_environments(folder),
        records=records,
        warnings=warnings,
    )


def load_header(folder: Path) -> tuple[SweepSpec, tuple[str, ...]]:
    """The sweep of a results folder, and its command; raises the same errors as `load`."""
    if not folder.exists():
        raise StoreError(f"{folder} does not exist; expected a results folder of dpbench sweep")
    if not holds_sweep(folder):
        held = "holds collectives only" if holds_collectives(folder) else "is not a results folder"
        raise StoreError(f"{folder} {held}: no {SWEEP_FILE} in it; dpbench sweep makes one")
    path = folder / SWEEP_FILE
    header = _read_header(path, ("sweep", "command"))
    spec = decode_at(path, SweepSpec, header["sweep"])
    return spec, decode_at(path, tuple[str, ...], header["command"])


def load_options(folder: Path) -> dict[str, Any]:
    """The options with which `dpbench sweep` was started in a folder, as a config file has them.

    Raises StoreError for a folder that another command made, which cannot be resumed.
    """
    header = read_versioned(folder / SWEEP_FILE)
    if not isinstance(header.get("options"), dict):
        raise StoreError(
            f"{folder}: only dpbench sweep can be resumed, and another command made it; choose "
            "another --name"
        )
    options: dict[str, Any] = header["options"]
    return options


def load_collectives(folder: Path) -> StoredCollectives:
    """Reads the collectives of a results folder; raises StoreError if it holds none, NewerSchema
    if it is too new."""
    if not folder.exists():
        raise StoreError(f"{folder} does not exist; expected a results folder of dpbench comm")
    if not holds_collectives(folder):
        raise StoreError(
            f"{folder} holds no collectives: no {COMM_FILE} in it; "
            f"dpbench comm --name {folder.resolve().name} adds them"
        )
    header = _read_header(folder / COMM_FILE, ("command",))
    records, warnings = read_log(folder / COLLECTIVES_FILE, _COLLECTIVES)
    return StoredCollectives(
        folder=folder,
        command=decode_at(folder / COMM_FILE, tuple[str, ...], header["command"]),
        environments=_read_environments(folder),
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


def _make(folder: Path) -> None:
    try:
        (folder / ENVIRONMENTS_FOLDER).mkdir(parents=True, exist_ok=True)
        flush_folder(folder.parent)
    except OSError as error:
        raise StoreError(f"cannot make {folder}: {error.strerror}") from None


def _read_header(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    header = read_versioned(path)
    for key in keys:
        if key not in header:
            raise StoreError(f"{path} lacks {key!r}; it was not written by dpbench")
    return header


def _read_environments(folder: Path) -> dict[str, Environment]:
    paths = sorted(folder_inside(folder, ENVIRONMENTS_FOLDER).glob("*.json"))
    return {
        printable(path.stem, LONGEST_NAME): decode_at(path, Environment, read_object(path))
        for path in paths
    }
