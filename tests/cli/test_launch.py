"""Launchers that are killed: in processes of their own, as a user has them."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from torch.distributed import run as torchrun

from dpbench.cli.app import run
from tests.cli.command import start
from tests.waiting import wait_until

STUBBORN = """
import os, signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
open(f"pid{os.environ['RANK']}.tmp", "w").write(str(os.getpid()))
os.rename(f"pid{os.environ['RANK']}.tmp", f"pid{os.environ['RANK']}")
time.sleep(60)
"""


def workers(folder: Path) -> list[psutil.Process]:
    wait_until(lambda: len(list(folder.glob("pid?"))) == 2)
    return [psutil.Process(int(path.read_text())) for path in folder.glob("pid?")]


def launched(folder: Path, *options: str) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "stubborn.py").write_text(STUBBORN)
    return start("launch", "--nproc-per-node", "2", *options, "stubborn.py", cwd=folder)


def test_stubborn_workers_die_with_their_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # one that is killed leaves its folder
    killed = launched(tmp_path / "killed")
    asked = launched(tmp_path / "asked", "--shutdown-timeout", "1")
    left = workers(tmp_path / "killed")
    killed.kill()
    killed.communicate()
    _, alive = psutil.wait_procs(left, timeout=30)
    assert not alive

    left = workers(tmp_path / "asked")
    asked.send_signal(signal.SIGTERM)
    _, printed = asked.communicate(timeout=60)
    assert asked.returncode == 128 + signal.SIGTERM
    assert printed.splitlines()[-1] == "dpbench: interrupted"
    _, alive = psutil.wait_procs(left, timeout=30)
    assert not alive


def test_the_second_ctrl_c_ends_a_launch_and_its_workers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ignore the first, and would be waited for, for half a minute."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    asked = launched(tmp_path / "twice", "--shutdown-timeout", "600")
    left = workers(tmp_path / "twice")
    asked.send_signal(signal.SIGINT)
    time.sleep(2)  # two signals that come before the first is handled are one
    assert asked.poll() is None
    asked.send_signal(signal.SIGINT)
    _, printed = asked.communicate(timeout=40)  # the workers would end by themselves after 60 s
    assert asked.returncode == 128 + signal.SIGINT
    assert printed.splitlines()[-1] == "dpbench: interrupted"
    _, alive = psutil.wait_procs(left, timeout=30)
    assert not alive
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # torch's own
@pytest.mark.usefixtures("torchrun_here")
def test_the_summary_ends_with_what_the_first_cause_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    Path("fail.py").write_text("raise ValueError('no such thing')")
    assert run(["launch", "fail.py", "--help"]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("dpbench: 1 process here, OMP_NUM_THREADS=")
    assert (
        "dpbench: first cause: rank 0 exited with status 1; the last lines of its stderr:" in lines
    )
    assert lines[-1] == "    ValueError: no such thing"


@pytest.mark.parametrize("words", [["--help"], ["--nnodes", "2", "-h"]])
def test_its_help_says_what_it_adds_and_names_every_option_of_torchrun(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["launch", *words]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: dpbench launch [OPTIONS] SCRIPT")
    assert len(text.splitlines()) < 40
    assert "Workers die with the launcher" in text
    assert "Torch Distributed Elastic" not in text
    for action in torchrun.get_args_parser()._actions:  # noqa: SLF001
        assert not action.option_strings or any(name in text for name in action.option_strings)


@pytest.mark.full
def test_a_training_that_lost_its_peer_ends_with_what_to_type_to_go_on(tmp_path: Path) -> None:
    """A rank that hangs is as silent as one behind a cut link."""
    train = ("-m", "dpbench", "train", "--arch", "tests.launch.faulty:Hangs", "--timeout", "8")
    run = ("--limit-train", "48", "--batch-size", "4", "--epochs", "1", "--name", "cut")
    options = ("--nproc-per-node", "2", "--shutdown-timeout", "1")
    launching = start("launch", *options, *train, *run, cwd=tmp_path)
    _, printed = launching.communicate(timeout=100)
    last = printed.splitlines()[-1].strip()
    assert launching.returncode == 1
    assert last.startswith("dpbench: another rank did not answer: ")
    assert last.endswith(
        "; there is no checkpoint yet; to begin again: the same launcher on every node, with "
        "dpbench train --arch tests.launch.faulty:Hangs --batch-size 4 --epochs 1 "
        "--limit-train 48 --timeout 8 --resume runs/cut"
    )
    assert "Traceback" not in printed
