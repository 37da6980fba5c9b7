"""Standard streams that are closed, full or left by their reader change nothing else."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dpbench import folders
from tests.cli.command import environment

pytestmark = pytest.mark.slow

CODE = """
import sys
from dpbench.cli.streams import prepare_streams
stdout = prepare_streams()
for stream in (sys.stdout, sys.stderr):
    for _ in range(3):
        print("é" * 100_000, file=stream)
        stream.flush()
sys.exit(stdout.exit_status(3))
"""
PRINTS = """
import atexit, os, subprocess, torch
print("import"); os.write(1, b"descriptor "); subprocess.run(["echo", "child"])
atexit.register(print, "exit")
def make():
    print("make")
    return torch.nn.Linear(4, 2), lambda n, seed: (torch.zeros(n, 4), torch.zeros(n, 2)), loss
loss = torch.nn.functional.mse_loss
"""
SWEEP = (
    *("sweep", "--implementations", "ddp", "--quiet", "--batch-sizes", "4", "--steps", "2"),
    *("--warmup", "0", "--gpus", "2", "--group-sizes", "2", "--oversubscribe"),
    *("--repetitions", "1", "--no-charts", "--name", "s"),
)


def shell(command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command.replace("dpbench", f"exec {shlex.quote(sys.executable)} -m dpbench", 1),
        shell=True,
        cwd=cwd,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("leaving", ["stdout", "stderr"])
def test_the_exit_status_stands_and_the_other_stream_gets_everything(leaving: str) -> None:
    """Its reader has left, or its disk is full."""
    read, write = os.pipe()
    os.close(read)
    if leaving == "stderr":
        os.close(write)
        write = os.open("/dev/full", os.O_WRONLY)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, leaving: write}
    done = subprocess.run([sys.executable, "-X", "utf8", "-c", CODE], check=False, **streams)
    os.close(write)
    assert done.returncode == 3
    heard = done.stderr if leaving == "stdout" else done.stdout
    assert heard.decode() == ("é" * 100_000 + "\n") * 3


def test_a_sweep_without_any_stream_measures_every_trial(tmp_path: Path) -> None:
    """Its ranks inherit what is missing."""
    words = (*SWEEP, "--arch", "mlp", "--data", "synthetic")
    done = shell(f"dpbench {shlex.join(words)} <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    records = folders.load_sweep(tmp_path / "results/s").records
    assert [record.status.value for record in records] == ["completed"] * 2


def test_results_that_a_full_disk_takes_are_one_line_and_a_failure(tmp_path: Path) -> None:
    done = shell("dpbench --version > /dev/full", tmp_path)
    assert done.stderr == "dpbench: cannot write the output: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(SWEEP, marks=pytest.mark.full),
        ("train", "--gpus", "1", "--epochs", "1", "--quiet"),
    ],
    ids=["sweep", "train"],
)
def test_json_stays_json_whatever_a_model_prints(words: tuple[str, ...], tmp_path: Path) -> None:
    """At import, in its factory, from a child process, to descriptor 1 and in an exit handler; a
    training builds the model in the command's own process, too."""
    (tmp_path / "model.py").write_text(PRINTS)
    done = shell(f"dpbench {shlex.join(words)} --arch model.py:make --json", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    if words[0] == "train":
        assert {"import", "descriptor", "child", "make", "exit"} <= {*done.stderr.split()}


def test_output_is_utf_8_whatever_the_locale() -> None:
    code = "from dpbench.cli.streams import prepare_streams; prepare_streams(); print('\\u00d7')"
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment(), **locale}, capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, "×\n".encode()), done.stderr
