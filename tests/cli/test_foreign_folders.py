"""Results folders from somebody else: no command runs code that they name, or writes through a link
in them.

tests/test_files.py has every kind of file and every way to write it.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.run.this_machine import TEST_LAUNCHERS
from tests.launch import synthetic

pytestmark = pytest.mark.usefixtures("synthetic")

SWEEP = (
    *("sweep", "--name", "s", "--implementations", "ddp", "--batch-sizes", "8", "--gpus", "2"),
    *("--oversubscribe", "--repetitions", "2", "--quiet", "--no-charts"),
)
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep and a report."""
    place = tmp_path_factory.mktemp("swept")
    with contextlib.chdir(place), synthetic.in_use():
        assert run(SWEEP) == 0
    return place / "results" / "s"


@pytest.fixture
def foreign(swept: Path, here: Path) -> Path:
    """A copy of it, in the working directory."""
    return Path(shutil.copytree(swept, here / "results" / "s")).relative_to(here)


def refused_through_a_link(words: list[str], path: Path, capsys: Captured) -> None:
    """The command, with a link to an empty file or folder in the place of `path`."""
    outside = Path("outside").absolute()
    if path.suffix:
        outside.touch()
        path.unlink()
    else:
        outside.mkdir()
        shutil.rmtree(path, ignore_errors=True)
    path.symlink_to(outside)
    assert run(words) == 2, words
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{path} is a link or not a f" in last
    assert not ([*outside.iterdir()] if outside.is_dir() else outside.read_text())


@pytest.mark.parametrize(
    ("command", "inside"),
    [
        ("report --no-charts", "report"),
        ("report --no-charts", "report/index.html"),
        ("plot throughput", "report/charts"),
    ],
)
def test_a_link_in_a_results_folder_is_refused(
    foreign: Path, capsys: Captured, command: str, inside: str
) -> None:
    refused_through_a_link([*command.split(), str(foreign)], foreign / inside, capsys)


def test_a_sweep_is_not_resumed_through_a_link(
    foreign: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (foreign / "trials.jsonl").read_text().splitlines(keepends=True)
    (foreign / "trials.jsonl").write_text("".join(lines[:-1]))  # so that something is missing
    monkeypatch.delenv(TEST_LAUNCHERS)  # only ranks write logs
    refused_through_a_link([*SWEEP, "--resume"], foreign / "logs", capsys)


def test_the_name_of_a_file_does_nothing_to_a_terminal(foreign: Path, capsys: Captured) -> None:
    for path in [*(foreign / "environments").iterdir()]:
        path.rename(path.with_name("\x1b[2Jevil.json"))
    run(["report", str(foreign), "--no-charts"])
    assert "\x1b" not in "".join(capsys.readouterr())
    assert "\x1b" not in (foreign / "report" / "index.html").read_text()


def test_no_code_is_imported_that_records_name(
    foreign: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("stranger.py").write_text("open('was_imported', 'w').close()\n")
    monkeypatch.syspath_prepend(Path.cwd())
    trials = foreign / "trials.jsonl"
    name = '"architecture":"stranger.py:make"'
    trials.write_text(trials.read_text().replace('"architecture":"mnist_cnn"', name))
    for command in (["report", "--no-charts", "--json"], ["explain"]):
        run([*command, str(foreign)])
    assert "stranger.py:make" in capsys.readouterr().out
    assert not Path("was_imported").exists()
