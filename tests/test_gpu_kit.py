"""The GPU kit itself: what fails costs nothing else, and a run goes on where it stopped."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

import psutil
import pytest

from tests.cli.synthetic import dpbench
from tools.gpu_kit import ratios, recorded
from tools.gpu_kit.__main__ import read_summary, run_all
from tools.gpu_kit.part import Part, resumed, run
from tools.gpu_kit.parts import ON_TWO_GPUS, SLICES, Place, parts

TESTS = Path(__file__).parent


def python(name: str, code: str, limit: float = 60.0) -> Part:
    return Part(name=name, command=(sys.executable, "-c", code), limit_seconds=limit)


def test_a_part_that_fails_says_which_error_it_was(tmp_path: Path) -> None:
    verdict = run(python("bad", "print('before'); raise ValueError('no stream')"), tmp_path)
    assert (verdict.verdict, verdict.detail) == ("failed", "ValueError: no stream")


def test_a_part_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    verdict = run(python("slow", code, limit=3.0), tmp_path)
    assert (verdict.verdict, verdict.detail) == (
        "timed out",
        "not done after 3 s; " + _log(tmp_path),
    )
    assert not psutil.wait_procs(_alive(int(_log(tmp_path))), timeout=30)[1]


def _alive(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return []


def _log(folder: Path) -> str:
    return (folder / "logs" / "slow.txt").read_text().strip()


def test_a_run_goes_on_after_what_has_passed(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    ran = f"open({str(marks)!r}, 'a').write('x')"
    wanted = [python("first", ran), python("second", "raise SystemExit(3)"), python("third", ran)]
    assert run_all(wanted, tmp_path, 600.0, again=False) == 1
    assert run_all(wanted, tmp_path, 600.0, again=False) == 1
    assert marks.read_text() == "xx"
    verdicts = {name: one.verdict for name, one in read_summary(tmp_path).items()}
    assert verdicts == {"first": "passed", "second": "failed", "third": "passed"}
    assert run_all(wanted, tmp_path, 600.0, again=True) == 1
    assert marks.read_text() == "xxxx"


def test_a_part_that_needs_more_gpus_is_skipped_with_the_reason(tmp_path: Path) -> None:
    two = replace(python("two", "raise SystemExit(3)"), gpus=2)
    assert run_all([two], tmp_path, 600.0, again=False, gpus=1) == 0
    one = read_summary(tmp_path)["two"]
    assert (one.verdict, one.detail) == ("skipped", "needs 2 GPUs; this machine has 1")
    assert run_all([two], tmp_path, 600.0, again=False) == 1


@pytest.mark.parametrize(("command", "more"), [("sweep", ["--dry-run"]), ("comm", [])])
def test_the_commands_of_a_rehearsal_are_accepted(
    command: str, more: list[str], here: Path
) -> None:
    commands = [part.command[3:] for part in parts(Place(folder=str(here), rehearse=True))]
    planned = [words for words in commands if words[:1] == (command,)]
    assert planned
    for words in planned:
        assert dpbench(*words, *more) == 0, words


def test_what_a_wrapper_costs_is_a_ratio_with_its_interval_and_its_limit(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = next(one for one in parts(Place(folder=str(here), rehearse=True)) if "-mlp" in one.name)
    words = ("--implementations", "single,ddp,torch-ddp", "--backends", "gloo", "--gpus", "1")
    assert dpbench("sweep", "--results-dir", here, "--name", part.name, *words, "--quiet") == 0
    capsys.readouterr()
    ratios.main(str(here / part.name))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "step of ddp ÷ single",
        "step of ddp ÷ torch-ddp",
    ]
    assert [line.rpartition(", ")[2] for line in lines] == ["wanted <= 1.01", "wanted <= 1.0"]


def test_a_sweep_that_was_begun_goes_on_and_what_it_recorded_is_looked_at(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = parts(Place(folder=str(here), rehearse=True))
    part = next(one for one in everything if one.name == "sweep-resnet")
    assert resumed(part, here) == part.command
    assert dpbench(*part.command[3:]) == 0
    assert resumed(part, here) != part.command
    assert dpbench(*resumed(part, here)[3:]) == 0
    capsys.readouterr()
    assert recorded.main(str(here / part.name)) == 0


def test_every_test_that_needs_a_gpu_is_in_a_part() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    del texts[Path(__file__)]
    marked = {path for path, text in texts.items() if "mark.gpu" in text}
    named = chain(*SLICES, ON_TWO_GPUS)
    assert marked <= {path for part in named for path in _files(TESTS.parent / part)}
    by_hand = [path for path, text in texts.items() if "skipif(not torch.cuda" in text]
    assert not by_hand, "the mark gpu skips where there is no GPU"


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [*path.rglob("test_*.py")]
