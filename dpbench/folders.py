"""Folders of results: append-only, complete up to the last line that was written.

results/<name>/
  sweep.json          the Header: the schema version, the command, and the specification
  trials.jsonl        one TrialRecord per line, flushed to disk after each trial
  comm.json           the same, without a specification
  collectives.jsonl   one CollectiveRecord per line, flushed as well
  environments/       one file per environment in which records were measured
  logs/               output of the ranks of failed trials
  report/             tables and charts, made from the above at any time

A folder holds a sweep or collectives.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from dpbench import units
from dpbench.codec import encode, from_json, json_bytes
from dpbench.errors import FileError, UsageError, near_path
from dpbench.files import (
    LineReader,
    LineWriter,
    folder_inside,
    make_folder,
    read_object,
    require_free,
    write_object,
)
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import SCHEMA_VERSION, SchemaVersion, Status, TrialRecord
from dpbench.specs import Configuration, SweepSpec
from dpbench.specs.command_line import CommandLine
from dpbench.specs.traits import IMPLEMENTATIONS

SWEEP_FILE = "sweep.json"
TRIALS_FILE = "trials.jsonl"
COMM_FILE = "comm.json"
COLLECTIVES_FILE = "collectives.jsonl"
ENVIRONMENTS_FOLDER = "environments"
LOGS_FOLDER = "logs"
MAX_NAME = 200
RESUME_REMEDY = "finish a sweep with --resume"
"""The remedy where a folder of results exists already."""
MAX_FOLDERS_NAMED = 3
"""Most results folders that an error lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The content of sweep.json or comm.json: what the folder is for."""

    schema_version: SchemaVersion
    command: CommandLine
    spec: SweepSpec | None = None
    """None for collectives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A sweep and its folder; one that is only planned has no records, and no folder yet."""

    folder: Path
    command: CommandLine
    """The command that measured it."""
    spec: SweepSpec
    records: tuple[TrialRecord, ...] = ()
    """One for each trial that was run: the last one, if it was run again."""
    environments: dict[str, Environment] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """Warnings of what could not be read."""

    def with_records(self, records: Iterable[TrialRecord]) -> Self:
        """The same with more records, which replace those of the same trials."""
        by_trial = {(one.configuration, one.repetition): one for one in (*self.records, *records)}
        return replace(self, records=tuple(by_trial.values()))

    @property
    def missing(self) -> tuple[tuple[Configuration, int], ...]:
        """The planned trials without a record, in the order in which they run."""
        done = {(record.configuration, record.repetition) for record in self.records}
        return tuple(trial for trial in self.spec.trials if trial not in done)

    @property
    def trials_run(self) -> int:
        """The number of trials that have run, which those that were skipped have not."""
        return sum(record.status is not Status.SKIPPED for record in self.records)

    @property
    def unfinished_warning(self) -> str | None:
        """The warning that trials are missing, with the command that runs them; None if none are.
        Trials of a configuration that was skipped are not missing."""
        skipped = {one.configuration for one in self.records if one.status is Status.SKIPPED}
        left = sum(configuration not in skipped for configuration, _ in self.missing)
        if not left:
            return None
        planned = units.counted(self.trials_run + left, "trial")
        to_finish = f"; to finish: {self.to_finish}" if self.to_finish else ""
        return f"Unfinished: {self.trials_run:,} of {planned}{to_finish}"

    @property
    def to_finish(self) -> str | None:
        """The command that finishes it; None if another command than sweep began it."""
        if self.command.name != "sweep":
            return None
        again = self.command.again(name=self.folder.absolute().name, resume=True).text
        return f"on every node, as before: {again}" if self.spec.devices_by_node else again


class ResultsFolder(AbstractContextManager["ResultsFolder"]):
    """A results folder that is open for more records; one writer at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines = LineWriter(
            folder / (TRIALS_FILE if holds_sweep(folder) else COLLECTIVES_FILE),
            writer="another dpbench",
            if_lost="earlier records are kept (a sweep goes on from there with the same "
            "--name and --resume)",
        )

    @classmethod
    def create(cls, folder: Path, command: CommandLine, spec: SweepSpec | None = None) -> Self:
        """Make the folder, of a sweep if it has a specification, else of collectives; raises
        FileError if it exists and holds something."""
        require_free(folder, RESUME_REMEDY)
        make_folder(folder)
        header = Header(schema_version=SCHEMA_VERSION, command=command, spec=spec)
        write_object(folder / (SWEEP_FILE if spec else COMM_FILE), header)
        return cls(folder)

    def append(self, record: TrialRecord | CollectiveRecord) -> None:
        """Add one record; returns when it is on disk."""
        self._lines.append(json_bytes(encode(record)), sync=True)

    def add_environment(self, environment: Environment) -> None:
        inside = folder_inside(self.folder, ENVIRONMENTS_FOLDER, make=True)
        write_object(inside / f"{environment.environment_id}.json", environment)

    def __exit__(self, *_: object) -> None:
        self._lines.close()


def holds_sweep(folder: Path) -> bool:
    return os.path.lexists(folder / SWEEP_FILE)


def holds_collectives(folder: Path) -> bool:
    return os.path.lexists(folder / COMM_FILE)


def load_sweep(folder: Path) -> Sweep:
    """Read a results folder; raises FileError if it is not one, or is of another dpbench."""
    spec, content = read_content(folder, SWEEP_FILE, TRIALS_FILE, TrialRecord)
    if spec is None:
        raise FileError(f"{folder / SWEEP_FILE}: Header.spec: missing")
    records = content.pop("records")
    sweep = Sweep(folder=folder, spec=spec, **content).with_records(records)
    # An implementation may be a file of the user who measured it.
    used = {record.configuration.implementation for record in sweep.records}
    if unknown := {*used, *sweep.spec.implementations} - IMPLEMENTATIONS.keys():
        raise FileError(
            f"{folder}: this dpbench has no implementation {min(unknown)!r}; expected one of "
            f"{', '.join(IMPLEMENTATIONS)}"
        )
    return sweep


def check_name(name: str) -> None:
    """Raise UsageError unless `name` is a plain folder name."""
    is_plain = name not in ("", ".", "..") and not {*name} & {"/", ":"} and name.isprintable()
    if not is_plain or name.startswith("-") or len(name.encode()) > MAX_NAME:
        raise UsageError(
            f"--name: got {name[:40]!r}; expected a plain folder name of at most {MAX_NAME} bytes "
            "of UTF-8, without '/', ':' or control characters, that does not begin with '-'"
        )


def read_content(
    folder: Path, header_file: str, lines: str, record: type[Any]
) -> tuple[SweepSpec | None, dict[str, Any]]:
    """The specification, None for collectives, and what else files of these names hold: the
    command, the environments, the records, and warnings of what could not be read. Raises FileError
    if the folder holds no such results, or those of another dpbench."""
    if not os.path.lexists(folder / header_file):
        raise FileError(_missing(folder))
    path, warnings = folder / lines, tuple[str, ...]()
    reader = LineReader(path, lambda line: from_json(record, line))
    records = tuple(reader.new())
    if not path.exists():
        warnings = (f"{path} is missing; no records read",)
    elif reader.rest:
        warnings = (
            f"{path}: the last line is cut off ({len(reader.rest)} bytes); "
            f"read the {len(records)} before",
        )
    environments = sorted(folder_inside(folder, ENVIRONMENTS_FOLDER).glob("*.json"))
    header = read_object(folder / header_file, Header)
    return header.spec, {
        "command": header.command,
        "environments": {one.stem: read_object(one, Environment) for one in environments},
        "records": records,
        "warnings": warnings,
    }


def _missing(folder: Path) -> str:
    """Why a folder holds no results, as it has no such file, and where they may be."""
    place, problem = folder, f"{folder} has no {SWEEP_FILE}"
    if not folder.exists():
        place, problem = folder.parent, f"{folder} does not exist"
        usual = Path("results", folder)
        is_there = os.path.lexists(usual / SWEEP_FILE)
        if near := f"; did you mean {usual}?" if is_there else near_path(folder):
            return f"{problem}{near}"
    files = sorted(place.glob(f"*/{SWEEP_FILE}"), key=lambda file: -file.stat().st_mtime)
    names = units.some_of([str(file.parent) for file in files], MAX_FOLDERS_NAMED)
    named = f": {names}" if files else ""
    return f"{problem}; expected a results folder of dpbench sweep{named}"
