"""What a training measures, by a clock that only this test moves."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpbench.data.loader import EpochLoader
from dpbench.parallel import RanksDiffer
from dpbench.training import session as sessions
from dpbench.training.events import EpochLine, StepLine
from dpbench.training.learner import Learner
from dpbench.training.rank import train
from dpbench.training.run_folder import RunFolder
from dpbench.training.session import OutOfSync, Session
from tests.training.jobs import ALONE, QUIET, training_job, training_spec


class Clock:
    """In seconds; what is watched takes as long as it is told."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._patch = patch
        patch.setattr(time, "perf_counter", lambda: self.now)
        patch.setattr(sessions, "perf_counter", lambda: self.now)

    def takes(self, owner: Any, name: str, seconds: float) -> None:
        work = getattr(owner, name)

        def slow(*arguments: Any, **options: Any) -> Any:
            self.now += seconds
            return work(*arguments, **options)

        self._patch.setattr(owner, name, slow)


def test_speed_and_waiting_are_those_of_training_also_over_the_seam_of_two_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs of 5 steps, the last of 4 samples instead of 8: of each step 1 s is waiting for its
    samples and 3 s are learning. An evaluation of 100 s is no part of it."""
    clock = Clock(monkeypatch)
    clock.takes(EpochLoader, "_load", 1.0)
    clock.takes(Learner, "step", 3.0)
    clock.takes(sessions, "evaluate", 100.0)
    alone = {"implementation": "single", "backend": "none", "group_size": 1}
    spec = training_spec(**alone, batch_size=8, train_samples=36)
    run = replace(QUIET, log_interval=4, evaluation="rank0")
    outcome = train(training_job(tmp_path / "run", spec, run), ALONE, torch.device("cpu"))
    events = RunFolder.open(tmp_path / "run").events()
    lines = [event for event in events if isinstance(event, StepLine)]
    assert [line.step for line in lines] == [4, 8]
    assert [line.samples_per_second for line in lines] == [4 * 8 / 16, (4 + 3 * 8) / 16]
    assert [line.data_wait_share for line in lines] == [0.25, 0.25]
    assert [line.elapsed_seconds for line in lines] == [16.0, 8 * 4 + 100.0]
    epochs = [event for event in events if isinstance(event, EpochLine)]
    assert [epoch.epoch_seconds for epoch in epochs] == [20.0, 20.0]
    assert [epoch.evaluation_seconds for epoch in epochs] == [100.0, 100.0]
    assert (outcome.samples, outcome.data_wait_share) == (72, 0.25)


def test_only_ranks_that_differ_are_out_of_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is lost in the comparison is another error, and stays it."""
    learner = SimpleNamespace(settle=lambda: None, module=torch.nn.Identity())
    at = SimpleNamespace(epoch=0, step=6)
    session: Any = SimpleNamespace(learner=learner, at=at)

    def fails(error: Exception) -> None:
        def raises(_: torch.nn.Module) -> None:
            raise error

        monkeypatch.setattr(sessions, "check_sync", raises)
        Session._check_sync(session)

    with pytest.raises(OutOfSync, match="epoch 1, step 6: 1 of 4 tensors differ"):
        fails(RanksDiffer("1 of 4 tensors differ"))
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        fails(RuntimeError("Connection closed by peer"))
