"""dpbench calibrate as people call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpbench.cli.app import run
from tests.cli.synthetic import dpbench, make_noisy, signals

__all__ = ["signals"]

SIZES = ("--gpus", "2", "--quiet")


def test_it_measures_the_noise_and_ends_with_a_check(
    tmp_path: Path,
    signals: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_noisy(monkeypatch, 0.01)
    assert dpbench("calibrate", *SIZES, "--results-dir", tmp_path, "--name", "noise") == 0
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last[:5] == ["dpbench", "check", "--against", "torch-ddp", "--tolerance"]


def test_two_occasions_with_a_pause_between_decide_on_a_stored_baseline(
    tmp_path: Path,
    signals: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_noisy(monkeypatch, 0.01)
    options = (*SIZES, "--results-dir", tmp_path)
    assert dpbench("calibrate", *options, "--name", "noise", "--pause", "0.1s") == 0
    last = capsys.readouterr().out.splitlines()[-1].split()
    again = tmp_path / "noise-again"
    assert last[:4] == ["dpbench", "check", "--baseline", str(again)]
    assert run(["calibrate", str(again), "--again", str(tmp_path / "noise")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == last
    assert dpbench(*last[1:], "--quiet", "--results-dir", tmp_path) == 0
    assert run(["calibrate", str(again), "--pause", "1s"]) == 2


def test_a_stored_sweep_is_read_again(
    tmp_path: Path, signals: None, capsys: pytest.CaptureFixture[str]
) -> None:
    dpbench("calibrate", *SIZES, "--results-dir", tmp_path, "--name", "noise")
    first = capsys.readouterr().out
    assert run(["calibrate", str(tmp_path / "noise")]) == 0
    assert capsys.readouterr().out == first
    assert run(["calibrate", str(tmp_path / "noise"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {row["repetitions"] for row in data["rows"]} == {10}
    assert first.splitlines()[-1] == data["command"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repetitions", "3"], "two halves with a spread each take at least 4"),
        (["x", "--steps", "9"], "--steps has no effect, as x is measured"),
        (["x"], "x does not exist"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["calibrate", *arguments]) == 2
    assert message in capsys.readouterr().err
