"""Results folders from somebody else: no command writes through a link in them.

tests/test_files.py has every kind of file and every way to write it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.run.this_machine import TEST_LAUNCHERS
from tests.launch import synthetic

pytestmark = pytest.mark.usefixtures("synthetic")

VICTIM = "the reader's own\n"
SYNTHETIC = (
    *("--implementations", "ddp", "--batch-sizes", "8", "--gpus", "2"),
    *("--oversubscribe", "--repetitions", "2", "--quiet", "--no-charts"),
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep and a report."""
    place = tmp_path_factory.mktemp("swept")
    with contextlib.chdir(place), synthetic.in_use():
        assert run(["sweep", *SYNTHETIC, "--name", "s"]) == 0
    return place / "results" / "s"


@pytest.fixture
def foreign(swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(swept, tmp_path / "results" / "s")).relative_to(tmp_path)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file and a folder outside, which are as they were at the end."""
    folder = tmp_path / "home"
    folder.mkdir()
    file = folder / ".bashrc"
    file.write_text(VICTIM)
    yield file
    assert file.read_text() == VICTIM
    assert [path.name for path in folder.iterdir()] == [".bashrc"]


def put_link(path: Path, victim: Path) -> None:
    """Replaces a file by a link to the victim, and a folder by one to the victim's folder."""
    is_folder = path.is_dir() or not path.suffix
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(victim.parent if is_folder else victim)


def refused(words: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(words) == 2, words
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{path} is a " in last
    assert "; expected a" in last


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("command", "inside"),
    [
        ("report --no-charts", "report"),
        ("report --no-charts", "report/index.html"),
        ("plot throughput", "report/charts"),
    ],
)
def test_a_link_in_a_results_folder_is_refused(
    foreign: Path, victim: Path, capsys: pytest.CaptureFixture[str], command: str, inside: str
) -> None:
    put_link(foreign / inside, victim)
    refused([*command.split(), str(foreign)], foreign / inside, capsys)


@pytest.mark.timeout(60)
def test_a_sweep_is_not_resumed_through_a_link(
    foreign: Path,
    victim: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = (foreign / "trials.jsonl").read_text().splitlines(keepends=True)
    (foreign / "trials.jsonl").write_text("".join(lines[:-1]))  # so that something is missing
    put_link(foreign / "logs", victim)
    monkeypatch.delenv(TEST_LAUNCHERS)  # only ranks write logs
    refused(["sweep", *SYNTHETIC, "--name", "s", "--resume"], foreign / "logs", capsys)


def test_the_name_of_a_file_does_nothing_to_a_terminal(
    foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in [*(foreign / "environments").iterdir()]:
        shutil.copy(path, path.with_name("\x1b[2Jevil.json"))
        path.unlink()
    run(["report", str(foreign), "--no-charts"])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    for path in (foreign / "report").rglob("*.*"):
        assert "\x1b" not in path.read_text(errors="replace")
