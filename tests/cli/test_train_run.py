"""What is left to say of a training that ended in some other way than well."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from dpbench.cli.train_run import ended_well
from dpbench.errors import Interrupted, StoreError
from dpbench.training.run_folder import RunFolder
from dpbench.training_spec import TrainingRun
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
