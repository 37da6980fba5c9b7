"""`dpbench check` of two versions of a user's file: real processes, a real repository.

One test measures; the others take their numbers from the launchers of the tests. The longest run
with `make full`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from dpbench.cli.app import run
from dpbench.folders import load_sweep
from tests.cli.command import PATHS, environment, git, start
from tests.launch.synthetic import VARIABLES
from tests.waiting import is_alive, wait_until

MODEL = """
import time
import torch
from torch import nn
from layers import SECONDS


class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(SECONDS)
        return super().forward(x)


def build():
    def batch(n, generator=None):
        return torch.randn(n, 4, generator=generator), torch.zeros(n, dtype=torch.long)

    return Slow(4, 2), batch, nn.functional.cross_entropy
"""
OPTIONS = (
    *("check", "--arch", "model.py:build", "--implementations", "ddp", "--gpus", "1"),
    *("--batch-sizes", "8", "--steps", "4", "--warmup", "1", "--tolerance", "50%"),
    *("--repetitions", "2", "--budget", "1s", "--name", "now"),
)
LIMIT_SECONDS = 280
Finished = subprocess.CompletedProcess[str]
Check = Callable[..., Finished]


def write(folder: Path, seconds: float) -> None:
    (folder / "src" / "layers" / "__init__.py").write_text(f"SECONDS = {seconds}\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with the model in a folder of its own, and a package that it needs in src/."""
    folder = tmp_path / "repository" / "package"
    (folder / "src" / "layers").mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    write(folder, 0.03)
    git("init", "-q", cwd=folder.parent)
    git("add", ".", cwd=folder.parent)
    git("commit", "-qm", "one", cwd=folder.parent)
    return folder


@pytest.fixture
def check(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    signals: None,
) -> Check:
    """The command in this process, which measures nothing: each side has one of its own."""
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    # The package is found from anywhere, as `pip install --editable` has it.
    source = str(project / "src")
    monkeypatch.syspath_prepend(source)
    monkeypatch.setenv("PYTHONPATH", f"{PATHS}{os.pathsep}{source}")

    def checked(*options: str) -> Finished:
        status = run([*options])
        return Finished(options, status, *capfd.readouterr())

    return checked


@pytest.mark.full
@pytest.mark.timeout(LIMIT_SECONDS)
def test_a_change_that_makes_steps_longer_is_caught_against_the_revision_before(
    project: Path, check: Check
) -> None:
    write(project, 0.3)
    # Of two passes, a disturbed one would leave one degree of freedom, which decides nothing.
    done = check(*OPTIONS, "--repetitions", "3", "--against-ref", "HEAD")
    said = re.match(r"(regressed|inconclusive): time per sample: \+([\d,]+) %", done.stdout)
    assert said is not None, done.stdout + done.stderr
    # Other tests may keep the machine busy while one of the sides runs.
    assert said[1] == "regressed" or "the machine was busy" in done.stdout
    assert done.returncode == (3 if said[1] == "regressed" else 0)
    assert int(said[2].replace(",", "")) > 200, "a step sleeps for 0.3 s instead of 0.03"
    assert "the working directory (candidate) against HEAD (baseline)" in done.stdout
    assert f"HEAD is commit {git('rev-parse', 'HEAD', cwd=project)[:12]}" in done.stderr
    now, before = (load_sweep(project / "results" / name) for name in ("now", "now-baseline"))
    assert len(now.records) == len(before.records) == 3
    # In turn: the baseline goes first in one pass, and last in the next.
    both = zip(before.records, now.records, strict=True)
    first, second, *_ = ((one.started_utc, two.started_utc) for one, two in both)
    assert first[0] < first[1] < second[1] < second[0]
    assert git("worktree", "list", cwd=project).count("\n") == 1


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweeps of both sides take their numbers from the launchers of the tests."""
    monkeypatch.setenv("DPBENCH_SYNTHETIC", VARIABLES["DPBENCH_SYNTHETIC"])


@pytest.mark.slow
@pytest.mark.usefixtures("synthetic")
@pytest.mark.timeout(LIMIT_SECONDS)
def test_a_script_is_measured_as_it_is_and_as_it_was(project: Path, check: Check) -> None:
    (project / "train.py").write_text("'before'")
    git("add", ".", cwd=project)
    git("commit", "-qm", "two", cwd=project)
    (project / "train.py").write_text("'after'")
    options = ("--gpus", "1", "--steps", "4", "--repetitions", "2", "--budget", "1s")
    script = ("train.py", "--epochs", "1")
    done = check("check", *options, "--name", "now", "--against-ref", "HEAD", *script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train.py has changed between the two" in done.stdout
    assert "results" not in git("status", "--short", "--untracked-files=all", cwd=project)
    line = r"\[2/4\] the working directory: script.*, repetition 1: .* images/s .* left"
    assert re.search(line, done.stderr)
    now, before = (load_sweep(project / "results" / name) for name in ("now", "now-baseline"))
    for one in (*now.records, *before.records):
        assert one.configuration.script_command == script
        assert (one.configuration.implementation, one.configuration.steps) == ("script", 4)
    stored = check("check", "results/now", "--baseline", "results/now-baseline")
    assert stored.returncode == 0, stored.stdout + stored.stderr
    done = check("check", *options, "--against", "ddp", *script)
    assert "script (candidate) against ddp (baseline)" in done.stdout


@pytest.mark.full
@pytest.mark.usefixtures("synthetic")
@pytest.mark.timeout(LIMIT_SECONDS)
def test_another_python_is_the_baseline_and_what_differs_is_in_the_verdict(
    project: Path, check: Check, tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nOMP_NUM_THREADS=7 exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    options = [one for one in OPTIONS if one not in ("--arch", "model.py:build")]
    done = check(*options, "--arch", "mlp", "--against-python", str(other))
    assert done.returncode == 0, done.stderr
    head = " ".join(done.stdout.split())
    assert "; differs: variables: OMP_NUM_THREADS 7 → not there" in head
    assert f"this Python (candidate) against {other} (baseline)" in head
    now, before = (load_sweep(project / "results" / name) for name in ("now", "now-baseline"))
    assert len(now.records) == len(before.records) == 2


@pytest.mark.full
@pytest.mark.timeout(LIMIT_SECONDS)
def test_an_interrupted_check_keeps_what_it_measured_and_leaves_no_worktree(project: Path) -> None:
    stored = project / "results" / "now" / "trials.jsonl"  # after that of the baseline
    running = start(
        *(*OPTIONS, "--repetitions", "50", "--against-ref", "HEAD"),
        cwd=project,
        **VARIABLES | {"PYTHONPATH": f"{PATHS}{os.pathsep}{project / 'src'}"},
    )
    wait_until(lambda: running.poll() is not None or (stored.exists() and stored.read_text() != ""))
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    last = err.splitlines()[-1]
    kept = "records are in results/now and results/now-baseline"
    assert last == f"dpbench: interrupted: no verdict; {kept}"
    assert all(load_sweep(project / "results" / name).records for name in ("now", "now-baseline"))
    assert git("worktree", "list", cwd=project).count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
def test_a_check_that_is_ended_takes_its_sweep_and_all_ranks_along(
    number: signal.Signals, project: Path
) -> None:
    # The path of a socket has to fit, which that of a test's own folder may not.
    with TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        running = start(
            *(*OPTIONS, "--steps", "100000", "--against-ref", "HEAD"),
            cwd=project,
            PYTHONPATH=f"{PATHS}{os.pathsep}{project / 'src'}",
            TMPDIR=temporary,
        )
        wait_until(lambda: bool([*project.glob("results/now*/logs/*/rank0.stack")]))
        measuring = [child.pid for child in psutil.Process(running.pid).children(recursive=True)]
        assert len(measuring) >= 4, "the sweep, two helpers of its server of ranks, and a rank"
        os.kill(running.pid, number)
        running.communicate(timeout=30)
        wait_until(lambda: not any(map(is_alive, measuring)), seconds=10)
        left = {path.name.split("-")[0] for path in Path(temporary).iterdir()}
        assert number == signal.SIGKILL or not left & {"dpbench", "pymp"}
    assert git("worktree", "list", cwd=project).count("\n") == 1


@pytest.mark.full
def test_a_revision_that_cannot_be_measured_ends_the_check_with_its_message(
    project: Path, check: Check
) -> None:
    (project / "model.py").write_text("build = None")
    git("commit", "-qam", "two", cwd=project)
    (project / "model.py").write_text(MODEL)
    done = check(*OPTIONS, "--against-ref", "HEAD")
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("dpbench: HEAD: architecture 'model.py:build'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--against-ref", "nowhere", "model.py"], "nowhere: no such revision in this"),
        (["--against-ref", "HEAD", "--arch", "new.py:build"], "has no package/new.py; expected"),
        (["--against-ref", "HEAD", "--arch", "mlp"], "--arch mlp is not a file in this repository"),
        (["--against-ref", "HEAD", "{project}/model.py"], "expected a path relative to"),
        (["--against-ref", "HEAD", "--name", "n" * 195, "model.py"], "is 4 bytes shorter, as the"),
    ],
)
def test_what_cannot_be_compared_takes_one_line(
    arguments: list[str], words: str, project: Path, check: Check
) -> None:
    (project / "new.py").write_text(MODEL)
    done = check("check", "--gpus", "1", *(one.format(project=project) for one in arguments))
    assert done.returncode == 2
    assert words in done.stderr
