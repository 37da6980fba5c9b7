"""`dpbench.check`: the verdict of the command, in somebody else's program."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import dpbench
from dpbench import store
from dpbench.errors import UsageError
from tests.analysis.builders import QUIET, runs, slower, trial
from tests.cli.stored import stored


def sweep(folder: Path, throughputs: list[float]) -> Path:
    return stored(folder, runs(trial(), throughputs))


def test_a_stored_regression_is_a_verdict_with_its_rows(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old, new = sweep(here / "old", QUIET), sweep(here / "new", slower(QUIET, 0.10))
    checked = dpbench.check(candidate=str(new), baseline=str(old), tolerance="5%")
    assert (checked.data["outcome"], checked.data["exit_status"]) == ("regressed", 3)
    assert checked.data["summary"].startswith("regressed: time per image: +")
    assert checked.data["summary"] in " ".join(str(checked).split())
    (row,) = checked.data["rows"]
    assert row["outcome"] == "regressed"
    assert row["slowdown"] == pytest.approx(1 / 0.9, abs=0.02)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("synthetic")
def test_implementations_are_measured_without_a_word_and_signals_stay(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    checked = dpbench.check(
        against="torch-ddp", gpus=2, oversubscribe=True, name="mine", progress=False
    )
    assert checked.data["outcome"] in ("pass", "regressed", "inconclusive")
    command = store.load_sweep(here / "results/mine").command
    assert command[:3] == ("check", "--gpus", "2")
    assert "--against torch-ddp" in " ".join(command)
    assert capfd.readouterr() == ("", "")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_errors_name_arguments_and_what_no_rank_can_import(here: Path) -> None:
    with pytest.raises(UsageError, match=r"^got nothing to compare; expected one of "):
        dpbench.check()
    with pytest.raises(UsageError, match=r'^tolerance: got 0.05; .*; did you mean "5%"'):
        dpbench.check(against="dp", tolerance=0.05)
    with pytest.raises(UsageError, match="put it into a file"):
        dpbench.check("__main__:Net", against="torch-ddp")
    with pytest.raises(UsageError, match=r"argument of dpbench.check: got 'against_rev'; did you"):
        dpbench.check(against_rev="HEAD")
    assert not any(here.iterdir())
