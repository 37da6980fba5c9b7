"""A training and its folder, which has the specification, the log and the checkpoints.

runs/<name>/
  run.json       the specification, the command and environment of each start, how it ended
  log.jsonl      an event a line, see dpbench.training.events
  checkpoints/   step-00000120.pt, …, best.pt
  ranks/         what the ranks of the last start printed

Nothing in it is ever executed.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from dpbench.errors import FileError, near_path
from dpbench.files import (
    LineReader,
    LineWriter,
    folder_inside,
    make_folder,
    read_object,
    remove_leftovers,
    require_free,
    write_object,
)
from dpbench.messages import option_words
from dpbench.records.environment import Environment
from dpbench.records.trial import SCHEMA_VERSION, SchemaVersion
from dpbench.specs.command_line import CommandLine
from dpbench.specs.training import RESUME_LATEST, TrainingRunOptions, TrainingSpec
from dpbench.training.events import Event, from_line

RUN_FILE = "run.json"
LOG_FILE = "log.jsonl"
CHECKPOINTS = "checkpoints"
RANKS = "ranks"
OTHERWISE = f"go on with {option_words('resume', RESUME_LATEST)}"
"""The remedy where a folder of runs exists already."""


RunStatus = Literal["running", "completed", "failed", "interrupted"]
"""State of a training; "running" also if it was killed so that nobody could write the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """Description of a training; the same on every rank, except for the host's paths."""

    spec: TrainingSpec
    run: TrainingRunOptions
    folder: Path
    """The run folder, which exists. Only rank 0 writes into it; others may be on another host."""
    prepared: Path | None
    """Folder of the prepared datasets on this host; None if the samples are generated."""
    resume: str | None = None
    """None starts from the beginning; RESUME_LATEST continues from the latest checkpoint of the run
    folder, if there is one; otherwise the path of a checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStart:
    """The beginning or a resumption of a training."""

    command: CommandLine
    environment: Environment
    started_utc: str
    """Time in ISO 8601. It has no default: one that equals the value is not stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunManifest:
    """The content of run.json."""

    schema_version: SchemaVersion
    spec: TrainingSpec
    run: TrainingRunOptions
    starts: tuple[RunStart, ...]
    """The first one, and each resumption."""
    status: RunStatus
    reason: str | None = None
    """Reason why it failed or was stopped."""


def read_manifest(folder: Path) -> RunManifest:
    """The content of run.json; raises FileError if there is none, or it is damaged or of another
    dpbench."""
    file = folder / RUN_FILE
    if not os.path.lexists(file):
        missing = f"has no {RUN_FILE}"
        if not folder.exists():
            missing = f"does not exist{near_path(folder)}"
        raise FileError(f"{folder} {missing}; expected a run folder of dpbench train")
    folder_inside(folder, CHECKPOINTS)
    return read_object(file, RunManifest)


def begin_run(job: TrainingJob, command: CommandLine, environment: Environment) -> None:
    """Write the specification of a job that starts in a new folder, or goes on in it.

    Raises FileError: a new one exists or cannot be made, or another training writes to the log.
    """
    folder, earlier = job.folder, tuple[RunStart, ...]()
    if job.resume == RESUME_LATEST:
        earlier = read_manifest(folder).starts
    else:
        require_free(folder, OTHERWISE)
        make_folder(folder)
    start = RunStart(
        command=command,
        environment=environment,
        started_utc=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )
    manifest = RunManifest(
        schema_version=SCHEMA_VERSION,
        spec=job.spec,
        run=job.run,
        starts=(*earlier, start),
        status="running",
    )
    with closing(open_log(folder)):  # rank 0 opens it again, which may be another process
        try:
            for place in (folder, folder_inside(folder, CHECKPOINTS, make=True)):
                remove_leftovers(place)
        except OSError as error:
            raise FileError(f"cannot write into {folder}: {error.strerror}") from None
    write_object(folder / RUN_FILE, manifest)


def set_status(folder: Path, status: RunStatus, reason: str | None = None) -> None:
    """Write run.json again, atomically; raises FileError if it cannot be written."""
    manifest = replace(read_manifest(folder), status=status, reason=reason)
    write_object(folder / RUN_FILE, manifest)


def follow_log(folder: Path) -> LineReader[Event]:
    """Read the events as they come, starting with the first. A last line that is cut off is left
    out."""
    return LineReader(folder / LOG_FILE, from_line)


def open_log(folder: Path) -> LineWriter:
    """The log of a run folder, locked against other trainings until it is closed.

    Raises FileError if it cannot be written, or another training has it open.
    """
    return LineWriter(
        folder / LOG_FILE,
        writer="another training",
        if_lost=f"{option_words('resume', RESUME_LATEST)} goes on from the last checkpoint",
    )
