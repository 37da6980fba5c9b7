"""The folder of a training: made once, read strictly, appended to by one process."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpbench.errors import FileError
from dpbench.specs.training import TrainingRunOptions
from dpbench.training.run_folder import RUN_FILE, RunFolder, TrainingJob, open_log
from tests.builders import HERE
from tests.training.jobs import training_spec

SPEC = training_spec()
RUN = TrainingRunOptions(log_interval=7)


def job(path: Path, **changes: Any) -> TrainingJob:
    return TrainingJob(**{"spec": SPEC, "run": RUN, "folder": path, "prepared": None, **changes})


def made(path: Path) -> RunFolder:
    return RunFolder.begin(job(path), ["train", "--epochs", "2"], HERE)


def test_what_was_asked_for_is_read_back(tmp_path: Path) -> None:
    folder = made(tmp_path / "runs" / "one")
    again = RunFolder.open(folder.path)
    assert again.manifest == folder.manifest
    assert again.manifest.spec == SPEC
    assert again.manifest.run == RUN
    (start,) = again.manifest.starts
    assert (start.command, start.environment) == (("train", "--epochs", "2"), HERE)
    assert again.manifest.status == "running"
    assert again.checkpoints.is_dir()
    assert again.events() == ()
    with pytest.raises(FileError, match="one already exists; choose another --name, or go on"):
        made(folder.path)


def test_how_it_ended_is_written_and_a_resumption_takes_it_back(tmp_path: Path) -> None:
    folder = made(tmp_path / "one")
    folder.set_status("failed", "rank 1 was killed")
    header = RunFolder.open(folder.path).manifest
    assert (header.status, header.reason) == ("failed", "rank 1 was killed")
    longer = replace(SPEC, epochs=9)
    there = replace(HERE, hostname="there")
    for place in (folder.path, folder.checkpoints):
        (place / "file.01234567.tmp").touch()  # of one that was killed
    again = ["train", "--resume", "one"]
    RunFolder.begin(job(folder.path, spec=longer, resume="auto"), again, there)
    header = RunFolder.open(folder.path).manifest
    assert (header.status, header.reason, header.spec) == ("running", None, longer)
    first, second = header.starts
    assert (first.environment, second.environment) == (HERE, there)
    assert second.command == ("train", "--resume", "one")
    assert first.started_utc <= second.started_utc
    assert not [*folder.path.rglob("*.tmp")]


def test_a_training_that_finds_another_one_in_the_folder_changes_nothing_there(
    tmp_path: Path,
) -> None:
    first = made(tmp_path / "one")
    second = job(first.path, resume="auto")
    before = (first.path / RUN_FILE).read_bytes()
    in_use = pytest.raises(FileError, match="one is in use: another training is writing to it")
    with closing(open_log(first.path)), in_use:
        RunFolder.begin(second, ["train"], HERE)
    assert (first.path / RUN_FILE).read_bytes() == before
    RunFolder.begin(second, ["train"], HERE)
    assert len(RunFolder.open(first.path).manifest.starts) == 2
