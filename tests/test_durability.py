"""What a command has left is on disk: every file by its content, every folder by its names."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.launch.signals import ENDING
from dpbench.specs.training import TrainingRun
from dpbench.training.checkpoint_folder import CheckpointFolder
from dpbench.training.run_folder import LOG_FILE, RunFolder, RunStatus
from tests.records.test_environment import HERE
from tests.training.jobs import training_spec
from tests.training.test_checkpoint import checkpoint


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The inodes of all files and folders that were flushed."""
    inodes: set[int] = set()
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        inodes.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    before = {number: signal.getsignal(number) for number in ENDING}
    yield inodes
    for number, handler in before.items():
        signal.signal(number, handler)


def in_doubt(folder: Path, flushed: set[int]) -> list[str]:
    """What a power loss might take, above it too."""
    paths = [folder.parent, folder, *folder.rglob("*")]
    return sorted(str(path) for path in paths if path.stat().st_ino not in flushed)


@pytest.mark.usefixtures("synthetic")
def test_all_that_a_sweep_leaves_is_on_disk(
    flushed: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--gpus", "1", "--batch-sizes", "4", "--name", "s")
    assert run(["sweep", *options, "--quiet"]) == 0
    assert (tmp_path / "results/s/report/index.html").exists()
    assert in_doubt(tmp_path / "results/s", flushed) == []


def test_all_that_a_training_leaves_is_on_disk_but_its_log(
    flushed: set[int], tmp_path: Path
) -> None:
    folder = RunFolder.create(tmp_path / "runs/one", training_spec(), TrainingRun(), [], HERE)
    CheckpointFolder(folder.checkpoints, keep=1).save(checkpoint(8), best=True)
    folder.set_status(RunStatus.COMPLETED)
    assert in_doubt(folder.path, flushed) == [str(folder.path / LOG_FILE)]
