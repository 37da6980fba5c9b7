"""Commands that read results take the latest folder of a directory, and of results/ without one."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.errors import UsageError
from dpbench.run.results_folders import results_to_read
from tests.launch import synthetic

pytestmark = pytest.mark.usefixtures("synthetic")

Capture = pytest.CaptureFixture[str]
SWEEP = (
    "sweep --quiet --no-charts --implementations ddp --backends gloo"
    " --batch-sizes 8 --gpus 2 --threads 1 --warmup 1 --steps 2 --repetitions 2"
)
COMM = (
    "comm --quiet --no-charts --backends gloo --gpus 2 --sizes 4KB,64KB --repetitions 1 --samples 2"
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """results/ with two sweeps and, written after them, collectives."""
    place = tmp_path_factory.mktemp("measured")
    with contextlib.chdir(place), synthetic.in_use():
        for name in ("zero", "one"):
            assert run([*SWEEP.split(), "--name", name]) == 0
        assert run([*COMM.split(), "--name", "sizes"]) == 0
    for age, name in enumerate(("sizes", "one", "zero")):
        for file in (place / "results" / name).glob("*.json*"):
            os.utime(file, (1_700_000_000 - 60 * age,) * 2)
    (place / "results" / "notes").mkdir()
    return place / "results"


@pytest.fixture
def folders(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them in the working directory, as old as they are."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(measured, "results"))


def test_folders_are_in_the_order_in_which_they_were_measured(folders: Path) -> None:
    assert results_to_read("x", None, sweeps_only=False) == Path("results/sizes")
    (folders / "one" / "report" / "index.html").write_text("")  # nothing is measured by that
    assert results_to_read("x", None) == Path("results/one")
    os.utime(folders / "zero" / "trials.jsonl")
    assert results_to_read("x", None) == Path("results/zero")


def test_a_directory_of_results_folders_stands_for_the_latest_in_it(folders: Path) -> None:
    elsewhere = folders.rename("elsewhere")
    latest = Path(shutil.copytree("elsewhere/zero", "elsewhere/one/zero")).parent
    assert results_to_read("x", elsewhere) == results_to_read("x", latest) == latest


@pytest.mark.usefixtures("here")
def test_without_a_folder_the_error_names_a_remedy() -> None:
    with pytest.raises(UsageError, match=r"holds none; name one, or the directory"):
        results_to_read("report", None)


@pytest.mark.usefixtures("folders")
def test_a_chart_without_data_leaves_no_folder(capsys: Capture) -> None:
    assert run(["plot", "bandwidth,loss", "results/sizes", "--output", "x"]) == 2
    assert not Path("x").exists()
    assert "no chart loss: no training was measured; dpbench sweep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (["report", "--no-charts"], "sizes"),
        (["explain"], "one"),
        (["plot", "loss", "--output", "x"], "one"),
        (["plot", "bandwidth", "--output", "x"], "sizes"),
    ],
)
def test_a_command_without_a_folder_takes_the_latest_and_says_so(
    folders: Path, capsys: Capture, words: list[str], taken: str
) -> None:
    assert run(words) == 0
    out, err = capsys.readouterr()
    said = f"dpbench: {words[0]}: using the latest in results: results/{taken}"
    assert err.splitlines()[0] == said
    assert "using the latest" not in out


def test_a_sweep_that_ended_early_is_shown_as_such(folders: Path, capsys: Capture) -> None:
    trials = folders / "one" / "trials.jsonl"
    trials.write_text("".join(trials.read_text().splitlines(keepends=True)[:3]))
    for command in ("report --no-charts", "explain"):
        assert run([*command.split(), "results/one"]) == 0
        first = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
        assert "Unfinished: 3 of 4 trials; to finish: dpbench sweep " in first
        assert " --name one " in first
        assert " --resume" in first
    assert "Unfinished: 3 of 4 trials" in (folders / "one/report/index.html").read_text()
