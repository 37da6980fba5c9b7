"""What is left to say of a training that ended in some other way than well."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.errors import StoreError
from dpbench.options.train import TrainOptions
from dpbench.run.training.plan import TrainPlan
from dpbench.run.training.running import following, open_folder
from dpbench.specs.training import TrainingRun
from dpbench.training.events import Event, Note, to_line
from dpbench.training.run_folder import RUN_FILE, RunFolder
from tests.builders import HERE
from tests.training.jobs import training_spec


def test_a_training_that_finds_another_one_in_the_folder_changes_nothing_there(
    tmp_path: Path,
) -> None:
    folder = RunFolder.create(tmp_path / "one", training_spec(), TrainingRun(), [], HERE)
    second = TrainPlan(
        options=TrainOptions(),
        spec=training_spec(),
        folder=folder.path,
        existing=RunFolder.open(folder.path),
    )
    before = (folder.path / RUN_FILE).read_bytes()
    folder.open_log()
    with pytest.raises(StoreError, match="one is in use: another training is writing to it"):
        open_folder(second, HERE)
    assert (folder.path / RUN_FILE).read_bytes() == before
    folder.close()
    open_folder(second, HERE)
    assert len(RunFolder.open(folder.path).header.starts) == 2


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "one", training_spec(), TrainingRun(), [], HERE)


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
