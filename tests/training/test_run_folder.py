"""The folder of a training: made once, read strictly, appended to by one process."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpbench.errors import FileError
from dpbench.specs.training import TrainingRunOptions
from dpbench.training.run_folder import (
    CHECKPOINTS,
    RUN_FILE,
    TrainingJob,
    begin_run,
    follow_log,
    open_log,
    read_manifest,
    set_status,
)
from tests.builders import HERE, command
from tests.training.jobs import training_spec

SPEC = training_spec()
RUN = TrainingRunOptions(log_interval=7)


def job(path: Path, **changes: Any) -> TrainingJob:
    return TrainingJob(**{"spec": SPEC, "run": RUN, "folder": path, "prepared": None, **changes})


def made(path: Path) -> Path:
    begin_run(job(path), command("train", epochs=2), HERE)
    return path


def test_what_was_asked_for_is_read_back(tmp_path: Path) -> None:
    folder = made(tmp_path / "runs" / "one")
    again = read_manifest(folder)
    assert (again.spec, again.run, again.status) == (SPEC, RUN, "running")
    (start,) = again.starts
    assert (start.command, start.environment) == (command("train", epochs=2), HERE)
    assert (folder / CHECKPOINTS).is_dir()
    assert not follow_log(folder).new()
    with pytest.raises(FileError, match="one already exists; choose another --name, or go on"):
        made(folder)


def test_how_it_ended_is_written_and_a_resumption_takes_it_back(tmp_path: Path) -> None:
    folder = made(tmp_path / "one")
    set_status(folder, "failed", "rank 1 was killed")
    header = read_manifest(folder)
    assert (header.status, header.reason) == ("failed", "rank 1 was killed")
    longer = replace(SPEC, epochs=9)
    there = replace(HERE, hostname="there")
    for place in (folder, folder / CHECKPOINTS):
        (place / "file.01234567.tmp").touch()  # of one that was killed
    begin_run(job(folder, spec=longer, resume="auto"), command("train", resume="one"), there)
    header = read_manifest(folder)
    assert (header.status, header.reason, header.spec) == ("running", None, longer)
    first, second = header.starts
    assert (first.environment, second.environment) == (HERE, there)
    assert second.command == command("train", resume="one")
    assert first.started_utc <= second.started_utc
    assert not [*folder.rglob("*.tmp")]


def test_a_training_that_finds_another_one_in_the_folder_changes_nothing_there(
    tmp_path: Path,
) -> None:
    first = made(tmp_path / "one")
    second = job(first, resume="auto")
    before = (first / RUN_FILE).read_bytes()
    in_use = pytest.raises(FileError, match="one is in use: another training is writing to it")
    with closing(open_log(first)), in_use:
        begin_run(second, command("train"), HERE)
    assert (first / RUN_FILE).read_bytes() == before
    begin_run(second, command("train"), HERE)
    assert len(read_manifest(first).starts) == 2
