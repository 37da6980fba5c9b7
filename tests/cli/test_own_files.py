"""A model's file that is edited between or during runs: what is refused, and what is said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dpbench.launch.outcome import Outcome
from dpbench.specs import TrialSpec
from dpbench.store import load_sweep
from tests.cli.synthetic import dpbench
from tests.launch.synthetic import SyntheticLauncher

pytestmark = pytest.mark.usefixtures("signals", "synthetic")

MODEL = """
import torch
from torch import nn

width = 2


def build():
    def batch(n, generator=None):
        return torch.randn(n, 4, generator=generator), torch.zeros(n, dtype=torch.long)

    return nn.Linear(4, width), batch, nn.functional.cross_entropy
"""
ARCH = ("--arch", "model.py:build")
SWEEP = (
    *("sweep", *ARCH, "--implementations", "ddp", "--group-sizes", "1", "--batch-sizes", "8"),
    *("--steps", "10", "--repetitions", "2", "--no-charts", "--quiet", "--name"),
)
CHANGED = "model.py has changed"


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "model.py").write_text(MODEL)


def edit(width: int) -> None:
    Path("model.py").write_text(MODEL.replace("width = 2", f"width = {width}"))


def test_a_sweep_is_not_finished_with_other_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert dpbench(*SWEEP, "a") == 0
    edit(3)
    capsys.readouterr()
    assert dpbench(*SWEEP, "a", "--resume") == 2
    assert f"--resume: {CHANGED} since results/a was begun; " in capsys.readouterr().err
    edit(2)
    assert dpbench(*SWEEP, "a", "--resume") == 0


def test_a_sweep_ends_where_a_file_changes_while_it_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SyntheticLauncher.run

    def run_and_edit(self: SyntheticLauncher, trial: TrialSpec, limit: float) -> Outcome:
        if trial.repetition:
            edit(3)
        return run(self, trial, limit)

    monkeypatch.setattr(SyntheticLauncher, "run", run_and_edit)
    assert dpbench(*SWEEP, "a") == 2
    said = capsys.readouterr().err
    assert f"{CHANGED} while the sweep ran" in said
    assert "3 of 4 trials are stored in results/a; put the old one back and finish with: " in said
    edit(2)
    assert dpbench(*SWEEP, "a", "--resume") == 0
    assert len(load_sweep(Path("results/a")).records) == 4
