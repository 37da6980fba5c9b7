"""Results folders from somebody else: no command runs code that they name, or writes through a link
in them.

tests/test_files.py has every kind of file and every way to write it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.cli.app import run
from tests.analysis.builders import weak_sweep
from tests.cli.stored import stored

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def foreign(here: Path) -> Path:
    """A sweep, in the working directory."""
    return stored(Path("results/s"), [one for i in range(2) for one in weak_sweep(i)])


def refused_through_a_link(words: list[str], path: Path, capsys: Captured, status: int = 2) -> None:
    """The command, with a link to an empty file or folder in the place of `path`."""
    outside = Path("outside").absolute()
    if path.suffix:
        outside.touch()
    else:
        outside.mkdir()
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(outside)
    assert run(words) == status, words
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
    words = [*command.split(), str(foreign)]
    status = 0 if inside.endswith("html") else 2  # the table is printed without the page
    refused_through_a_link(words, foreign / inside, capsys, status)


@pytest.mark.usefixtures("here", "synthetic")
def test_a_sweep_is_not_resumed_through_a_link(capsys: Captured) -> None:
    words = ["sweep", "--name", "s", "--implementations", "ddp", "--batch-sizes", "8", "--gpus"]
    words += ["1", "--repetitions", "2", "--quiet", "--no-charts"]
    assert run(words) == 0
    trials = Path("results/s/trials.jsonl")
    lines = trials.read_text().splitlines(keepends=True)
    trials.write_text("".join(lines[:-1]))  # so that something is missing
    refused_through_a_link([*words, "--resume"], trials.with_name("logs"), capsys)


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
    for command in (["report", "--json"], ["explain"]):
        run([*command, str(foreign)])
    assert "stranger.py:make" in capsys.readouterr().out
    assert not Path("was_imported").exists()
