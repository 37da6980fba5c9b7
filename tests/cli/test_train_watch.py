"""A log that is passed on while somebody else writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.cli.messages import said_to, say
from dpbench.cli.train_watch import following
from dpbench.training.events import Event, Note, to_line
from dpbench.training.run_folder import RunFolder
from dpbench.training_spec import TrainingRun
from tests.test_environment import HERE
from tests.training.jobs import training_spec


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


def test_what_listens_here_listens_there(folder: RunFolder) -> None:
    said: list[str] = []
    with said_to(said.append), following(folder.follow(), lambda event: say("heard")):
        write(folder, "one")
    assert said == ["heard"]


def test_an_error_of_the_listener_comes_out_when_the_training_is_over(folder: RunFolder) -> None:
    def refuse(event: Event) -> None:
        raise OSError("the screen is gone")

    trained = False
    with (  # noqa: PT012
        pytest.raises(OSError, match="the screen is gone"),
        following(folder.follow(), refuse),
    ):
        write(folder, "one")
        trained = True
    assert trained
