"""What is left to say of a training that ended in some other way than well."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.run.training.running import following
from dpbench.specs.training import TrainingRun
from dpbench.training.events import Event, Note, to_line
from dpbench.training.run_folder import RunFolder
from tests.builders import HERE
from tests.training.jobs import training_spec


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "one", training_spec(), TrainingRun())
    folder.begin(training_spec(), TrainingRun(), [], HERE)
    return folder


def write(folder: RunFolder, *texts: str) -> None:
    with (folder.path / "log.jsonl").open("a") as log:
        log.writelines(to_line(Note(text=text)) + "\n" for text in texts)


def test_every_event_is_passed_on_once_the_last_ones_at_the_end(folder: RunFolder) -> None:
    heard: list[Event] = []
    with following(folder.follow(), heard.append):
        write(folder, "one", "two")
        while len(heard) < 2:
            pass
        write(folder, "three")
    assert heard == [Note(text=text) for text in ("one", "two", "three")]
