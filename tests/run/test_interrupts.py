"""Signals while a sweep measures: what is stored stays, and nothing else."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dpbench import folders
from dpbench.cli.app import run
from dpbench.records.trial import TrialRecord
from dpbench.run.interrupts import end_at_once
from dpbench.specs import Configuration
from tests.launch.synthetic import SyntheticRunner

pytestmark = pytest.mark.usefixtures("synthetic")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_keeps_what_is_stored_and_is_the_exit_status(
    number: signal.Signals,
    signals: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    original = SyntheticRunner.run
    end_at_once()

    def interrupted(self: SyntheticRunner, settings: Configuration, *rest: Any) -> TrialRecord:
        if settings.implementation == "dp":
            os.kill(os.getpid(), number)
        return original(self, settings, *rest)

    monkeypatch.setattr(SyntheticRunner, "run", interrupted)
    options = ("--batch-sizes", "8", "--implementations", "dp", "--gpus", "1", "--repetitions", "1")
    on_cpu = ("--dtype", "f32,f16")  # of which no CPU runs the second, whose rows are skipped
    status = run(["sweep", *options, *on_cpu, "--results-dir", str(tmp_path), "--name", "cut"])
    assert status == 128 + number
    assert "interrupted: 1 of 2 trials is stored" in capsys.readouterr().err
    statuses = Counter(one.status.words for one in folders.load_sweep(tmp_path / "cut").records)
    assert statuses == {"skipped": 2, "completed": 1}


def test_an_interrupted_explanation_says_how_to_finish_and_then_explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> TrialRecord:
        raise KeyboardInterrupt

    monkeypatch.setattr(SyntheticRunner, "run", interrupted)
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    assert run(["explain", "--gpus", "2", "--name", "cut", "train.py", "--lr", "1"]) == 130
    said = capsys.readouterr().err
    assert said.endswith(" --resume train.py --lr 1; then dpbench explain results/cut\n")
