"""Folders from somebody else: links, pipes and devices in them are refused, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.run.this_machine import TEST_LAUNCHERS
from dpbench.run.training.place import resume_words
from dpbench.training.run_folder import RunFolder
from tests.cli.command import dpbench
from tests.cli.training import tiny
from tests.launch import synthetic

pytestmark = pytest.mark.usefixtures("synthetic")

VICTIM = "the reader's own\n"
SYNTHETIC = (
    *("--implementations", "ddp", "--batch-sizes", "8", "--gpus", "2"),
    *("--oversubscribe", "--repetitions", "2", "--quiet"),
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep, collectives, and a report with charts."""
    place = tmp_path_factory.mktemp("swept")
    with contextlib.chdir(place), synthetic.in_use():
        assert run(["sweep", *SYNTHETIC, "--name", "s"]) == 0
        assert run(["comm", "--gpus", "2", "--quiet", "--name", "s"]) == 0
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


def refused(words: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(words) == 2, words
    err = capsys.readouterr().err
    last = err.splitlines()[-1]
    assert f"{path} is a " in last, err
    assert "; expected a" in last
    assert "Traceback" not in err


REPORTS = {
    "report": ["report/table.csv", "report/index.html", "report/collectives.json"],
    "report --no-charts": ["report/table.txt", "report/table.md", "report/table.json"],
    "plot throughput": ["report/charts/throughput.svg"],
}
READERS = ("report", "report --json", "explain", "plot speedup")
READ = (
    *((command, file) for command in READERS for file in ("trials.jsonl", "sweep.json")),
    *((command, file) for command in READERS[:1] for file in ("collectives.jsonl", "comm.json")),
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("command", "file"),
    [(command, file) for command, paths in REPORTS.items() for file in paths],
)
def test_a_report_overwrites_nothing_through_a_link(
    foreign: Path, victim: Path, capsys: pytest.CaptureFixture[str], command: str, file: str
) -> None:
    (foreign / file).unlink(missing_ok=True)
    (foreign / file).symlink_to(victim)
    refused([*command.split(), str(foreign)], foreign / file, capsys)


@pytest.mark.parametrize("inside", ["report", "report/charts", "environments"])
@pytest.mark.parametrize("command", ["report", "plot throughput"])
def test_a_folder_inside_that_leads_elsewhere_is_refused(
    foreign: Path, victim: Path, capsys: pytest.CaptureFixture[str], command: str, inside: str
) -> None:
    shutil.rmtree(foreign / inside)
    (foreign / inside).symlink_to(victim.parent)
    refused([*command.split(), str(foreign)], foreign / inside, capsys)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["a pipe", "a link"])
@pytest.mark.parametrize(("command", "file"), READ)
def test_a_pipe_or_link_in_the_place_of_records_is_refused_and_nobody_waits(
    foreign: Path,
    victim: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    file: str,
    kind: str,
) -> None:
    (foreign / file).unlink()
    if kind == "a pipe":
        os.mkfifo(foreign / file)
    else:
        (foreign / file).symlink_to(victim)
    refused([*command.split(), str(foreign)], foreign / file, capsys)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("file", ["trials.jsonl", "logs", "traces", "environments"])
def test_a_sweep_is_not_gone_on_with_through_a_link(
    foreign: Path,
    victim: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A longer one, so that there is something left to measure."""
    path = foreign / file
    lines = (foreign / "trials.jsonl").read_text().splitlines(keepends=True)
    (foreign / "trials.jsonl").write_text("".join(lines[:-1]))
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(victim if file.endswith(("json", "jsonl")) else victim.parent)
    if file in ("logs", "traces"):  # only ranks write there
        monkeypatch.delenv(TEST_LAUNCHERS)
    command = ["sweep", *SYNTHETIC, "--name", "s", "--resume"]
    refused(command, path, capsys)


def test_the_folder_itself_and_what_the_user_names_may_be_links(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / "named"
    named.symlink_to(foreign.absolute())
    output, target = tmp_path / "rows.csv", tmp_path / "target.csv"
    output.symlink_to(target)
    assert run(["report", str(named)]) == 0
    assert run(["report", str(named), "--output", str(output)]) == 0
    assert output.is_symlink()
    assert target.read_text().startswith("implementation,")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut off."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert tiny("--name", "r", "--max-steps", 6, "--quiet") == 0
    return place / "runs" / "r"


@pytest.fixture
def training(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(trained, tmp_path / "runs" / "r")).relative_to(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["a link", "a pipe"])
@pytest.mark.parametrize("file", ["log.jsonl", "run.json", "checkpoints/step-00000006.pt"])
def test_a_training_is_not_gone_on_with_through_links_and_pipes(
    training: Path, victim: Path, capsys: pytest.CaptureFixture[str], file: str, kind: str
) -> None:
    (training / file).unlink()
    if kind == "a pipe":
        os.mkfifo(training / file)
    else:
        (training / file).symlink_to(victim)
    capsys.readouterr()
    assert tiny("--resume", training) == 2
    err = capsys.readouterr().err
    assert f"{file} is {kind}" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("inside", ["checkpoints", "ranks"])
def test_a_training_does_not_write_into_a_folder_elsewhere(
    training: Path, victim: Path, capsys: pytest.CaptureFixture[str], inside: str
) -> None:
    shutil.rmtree(training / inside, ignore_errors=True)
    (training / inside).symlink_to(victim.parent)
    capsys.readouterr()
    assert tiny("--resume", training) == 2
    assert f"{training / inside} is a link" in capsys.readouterr().err


def test_the_name_of_a_file_tells_no_terminal_what_to_do(
    foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in [*(foreign / "environments").iterdir()]:
        shutil.copy(path, path.with_name("\x1b[2Jevil.json"))
        path.unlink()
    run(["report", str(foreign)])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    for path in (foreign / "report").rglob("*.*"):
        assert "\x1b" not in path.read_text(errors="replace")


def test_a_pipe_does_not_hold_up_a_process_for_ever(foreign: Path, tmp_path: Path) -> None:
    """As users start it."""
    (foreign / "trials.jsonl").unlink()
    os.mkfifo(foreign / "trials.jsonl")
    finished = dpbench("report", str(foreign), cwd=tmp_path, timeout=30)
    assert finished.returncode == 2
    assert finished.stderr == (
        f"dpbench: {foreign / 'trials.jsonl'} is a pipe; expected a regular file\n"
    )


def test_a_command_that_is_told_is_one_command(
    training: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever copies it runs nothing else."""
    evil = "evil.py:f:a=$(touch ran);touch ran;"
    path = training / "run.json"
    content = json.loads(path.read_text())
    content["spec"]["workload"]["architecture"] = evil
    content["options"]["arch"] = evil
    path.write_text(json.dumps(content))
    capsys.readouterr()
    assert run(["train", "--resume", str(training)]) == 2
    err = capsys.readouterr().err
    assert f"give --arch {shlex.quote(evil)} as well" in err
    assert shlex.split(resume_words(RunFolder.open(training)))[-1] == evil
