"""The folder of a training: its place, its log, and what --resume goes on with.

Nothing is trained here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.errors import UsageError
from dpbench.messages import said_to
from dpbench.options.train import TrainOptions
from dpbench.run.training.preparation import place_training
from dpbench.run.training.ranks import following
from dpbench.specs.training import TrainingSpec
from dpbench.training.events import Event, to_line
from dpbench.training.run_folder import TrainingJob, follow_log
from tests.training.jobs import training_job, training_spec
from tests.training.test_events import STEP

SPEC = training_spec()
OTHER = replace(SPEC, batch_size=8)


@pytest.fixture
def runs(here: Path) -> Path:
    return Path("runs")


def made(runs: Path, name: str, spec: TrainingSpec = SPEC, *checkpoints: str) -> Path:
    folder = training_job(runs / name, spec).folder
    for checkpoint in checkpoints:
        (folder / "checkpoints" / checkpoint).touch()
    return folder


def place(runs: Path, said: list[str] | None = None, **given: str) -> TrainingJob:
    options = TrainOptions(runs_dir=runs, **given)
    with said_to((said or []).append):
        return place_training(options, SPEC)


def test_a_new_run_has_a_folder_of_its_own(runs: Path) -> None:
    found = place(runs, name="one")
    assert (found.folder, found.resume) == (runs / "one", None)
    unnamed = place(runs).folder
    assert unnamed.parent == runs
    assert unnamed.name.endswith("-tests.training.jobs-Plain")


@pytest.mark.parametrize("named", ["one", "runs/one"])
def test_a_run_is_named_by_its_folder_or_path(runs: Path, named: str) -> None:
    made(runs, "one")
    found = place(runs, resume=named)
    assert (found.folder, found.resume) == (runs / "one", "auto")


def test_a_checkpoint_begins_another_run(runs: Path) -> None:
    folder = made(runs, "one", SPEC, "step-00000005.pt")
    file = folder / "checkpoints" / "step-00000005.pt"
    found = place(runs, name="two", resume=str(file))
    assert (found.folder, found.resume) == (runs / "two", str(file.absolute()))


def test_another_training_is_refused_with_the_difference_and_the_command(runs: Path) -> None:
    made(runs, "one", OTHER)
    message = r"runs/one holds another training \(batch_size: 8 -> 4\); it was started with"
    with pytest.raises(UsageError, match=message):
        place(runs, resume="one")
    with pytest.raises(UsageError, match=message):
        place(runs, name="one", resume="auto")


def test_auto_goes_on_with_what_is_there_and_else_begins(runs: Path) -> None:
    said = [""]
    assert place(runs, said, name="one", resume="auto").resume is None
    assert said[1:] == ["--resume auto: no runs/one yet; starts a new run"]
    made(runs, "one")
    assert place(runs, name="one", resume="auto").resume == "auto"


def test_a_run_is_named_once(runs: Path) -> None:
    made(runs, "one")
    with pytest.raises(UsageError, match="goes on in that folder; leave --name out"):
        place(runs, name="two", resume="one")
    with pytest.raises(UsageError, match="--resume auto needs --name"):
        place(runs, resume="auto")


def test_every_event_is_passed_on_once_the_last_ones_at_the_end(runs: Path) -> None:
    folder, heard = made(runs, "one"), list[Event]()
    lines = [replace(STEP, step=step) for step in (1, 2, 3)]

    def write(*events: Event) -> None:
        with (folder / "log.jsonl").open("a") as log:
            log.writelines(f"{to_line(one)}\n" for one in events)

    with following(follow_log(folder), heard.append):
        write(*lines[:2])
        while len(heard) < 2:
            pass
        write(lines[2])
    assert heard == lines
