"""The first step of a user's code runs in a rank, and its errors are one line."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dpbench.errors import UsageError
from dpbench.launch.preflight import preflight
from dpbench.measure.try_out import TryOutResult

MODELS = """
import os, threading, time, torch
from torch import nn

def batch(n, generator=None): return torch.rand(n, 3), torch.rand(n, 2)

def spinning():
    threading.Thread(target=lambda: time.sleep(3600), daemon=True, name="spinning").start()
    print("made")
    model = nn.Linear(3, 2)
    model.spare = nn.Linear(1, 1)
    return model, batch, nn.functional.mse_loss

def aborting(): os.abort()
def wide(): return nn.Linear(4, 2), batch, nn.functional.mse_loss

def items(): return [(torch.rand(3), torch.rand(2))] * 4
"""


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)


def tried(arch: str, dataset: str | None = None) -> TryOutResult:
    return preflight(arch, dataset=dataset, seed=0)


@pytest.mark.slow
def test_threads_and_output_of_the_users_code_end_with_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = tried("models.py:spinning")
    assert "spinning" not in {thread.name for thread in threading.enumerate()}
    assert capfd.readouterr().out == ""
    assert found.dataset == "synthetic"
    unused, generated = found.notes
    assert "spare.weight, spare.bias" in unused
    assert generated == "--data synthetic: samples are made by models.py:spinning"
    assert tried("models.py:spinning", "models.py:items").dataset == "models.py:items"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "message"),
    [
        (
            "models.py:wide",
            r"architecture 'models.py:wide': a step on 2 samples raised RuntimeError: mat1 .* "
            r"\(models.py, line 15\)$",
        ),
        (
            "models.py:aborting",
            "architecture 'models.py:aborting': trying it on the CPU failed: rank 0 was killed "
            "by SIGABRT$",
        ),
    ],
)
def test_what_goes_wrong_there_is_one_line(arch: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        tried(arch)
    assert "\n" not in str(raised.value)


def test_a_shipped_architecture_needs_no_process() -> None:
    assert tried("mlp").notes == ("--data digits, the default of mlp",)
    with pytest.raises(UsageError, match="--data digits does not fit --arch gpt"):
        tried("gpt", "digits")
