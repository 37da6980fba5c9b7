"""A resumption starts from the right checkpoint, or is refused in one line on all ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.errors import UsageError
from dpbench.specs.training import TrainingRun, TrainingSpec
from dpbench.training.checkpoint import Checkpoint, from_bytes, to_bytes
from dpbench.training.checkpoint_folder import CheckpointFolder
from dpbench.training.job import TrainingJob
from dpbench.training.resume import agreed_checkpoint
from tests.training.checkpoint_samples import SPEC, checkpoint
from tests.training.jobs import ALONE, ranks_here


def job(folder: Path, resume: str | None = "auto", spec: TrainingSpec = SPEC) -> TrainingJob:
    return TrainingJob(spec=spec, run=TrainingRun(), folder=folder, prepared=None, resume=resume)


def save(folder: Path, *checkpoints: Checkpoint) -> list[Path]:
    """Save into the checkpoints of a run folder."""
    kept = CheckpointFolder(folder / "checkpoints", keep=99)
    return [kept.save(each, best=False) for each in checkpoints]


def refusal(asked: TrainingJob, ranks: Any = ALONE) -> str:
    with pytest.raises(UsageError) as caught:
        agreed_checkpoint(asked, ranks)
    words = str(caught.value)
    assert "\n" not in words
    return words


def test_auto_takes_the_latest_and_a_path_the_one_it_names(tmp_path: Path) -> None:
    first, latest = save(tmp_path, checkpoint(8), checkpoint(16))
    for asked, expected in (
        (job(tmp_path), (16, str(latest))),
        (job(tmp_path / "another", str(first)), (8, str(first))),
    ):
        found = agreed_checkpoint(asked, ALONE)
        assert found is not None
        assert (found.progress.step, found.source) == expected
    assert agreed_checkpoint(job(tmp_path, None), ALONE) is None
    assert agreed_checkpoint(job(tmp_path / "new"), ALONE) is None
    assert not (tmp_path / "new").exists()


def test_another_training_is_refused_with_what_differs(tmp_path: Path) -> None:
    (path,) = save(tmp_path, checkpoint(8))
    workload = replace(SPEC.workload, seed=3, compile="default")
    other = replace(SPEC, batch_size=16, workload=workload, epochs=5)
    assert refusal(job(tmp_path, spec=other)) == (
        f"{path} belongs to another training: seed: 0 -> 3, compile: 'none' -> 'default', "
        "batch_size: 8 -> 16; use the options that it was made with, or train without --resume"
    )


def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    words = refusal(job(tmp_path, str(tmp_path / "none.pt")))
    assert words == f"cannot read {tmp_path}/none.pt: No such file or directory"


def all_the_same(words: str) -> str:
    assert set(ranks_here().gather_bytes(words.encode())) == {words.encode()}
    return words


def two_ranks_go_on_from_the_same_or_not_at_all(folder: Path, rank: int) -> None:
    """The run folder of rank 1 is on another host, and does not exist here."""
    ranks, host = ranks_here(), folder / f"host{rank}"
    if rank == 0:
        save(host, checkpoint(16))
    found = agreed_checkpoint(job(host), ranks)
    assert found is not None
    path = folder / "host0" / "checkpoints" / "step-00000016.pt"
    assert all_the_same(str(found.source)) == str(path)
    expected = from_bytes(path.read_bytes(), "here").model
    torch.testing.assert_close(found.model, expected, rtol=0, atol=0)
    assert not (folder / "host1").exists()
    # Only rank 0 looks for a file.
    other = path.parent if rank else folder / "none"
    assert agreed_checkpoint(job(other), ranks) is None
    bad = folder / "bad.pt"
    if rank == 0:
        bad.write_bytes(to_bytes(checkpoint(16))[:-900])
    assert "it is damaged, or no checkpoint" in all_the_same(refusal(job(host, str(bad)), ranks))


ON_TWO_RANKS = [two_ranks_go_on_from_the_same_or_not_at_all]
"""Tests that run in the world of test_rank.py, and get a folder first."""
