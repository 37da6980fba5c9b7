"""What is left to say of a training that ended in some other way than well."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from dpbench.cli.train_run import ended_well, open_folder
from dpbench.errors import Interrupted, StoreError
from dpbench.training.run_folder import RUN_FILE, RunFolder
from dpbench.training_spec import TrainingRun
from tests.cli.test_train_config import asked
from tests.test_environment import HERE
from tests.training.jobs import training_spec
from tests.training.test_run_folder import no_space


@pytest.mark.parametrize("first", [StoreError("the log is full"), Interrupted(15)])
def test_on_a_full_disk_the_first_cause_goes_before_what_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Exception
) -> None:
    folder = RunFolder.create(tmp_path / "one", training_spec(), TrainingRun(), [], HERE)
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(type(first)) as raised, ended_well(Mock(), folder, None):
        raise first
    assert str(raised.value).startswith(f"{first}; cannot write {folder.path}/run.json: No space")


def test_a_training_that_finds_another_one_in_the_folder_changes_nothing_there(
    tmp_path: Path,
) -> None:
    """From its start to its end: also before its rank 0 writes the log, and after."""
    folder = RunFolder.create(tmp_path / "one", training_spec(), TrainingRun(), [], HERE)
    second = Mock()
    second.place.existing = RunFolder.open(folder.path)
    second.request = asked().read()
    second.run, second.spec = TrainingRun(), training_spec()
    before = (folder.path / RUN_FILE).read_bytes()
    with folder.held():
        with pytest.raises(StoreError, match="one is in use: another training is in it"):
            open_folder(second, HERE).__enter__()
        assert (folder.path / RUN_FILE).read_bytes() == before
    with open_folder(second, HERE):
        assert len(RunFolder.open(folder.path).header.starts) == 2
