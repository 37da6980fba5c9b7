"""Temporary folders end with their process, and are never taken for another's."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.command import environment

OWNER = """
import sys, time
from dpbench.temporary import keep_sockets_in_own_folder, temporary_folder
keep_sockets_in_own_folder()
with temporary_folder() as folder:
    (folder / "large").touch()
    print("ready", flush=True)
    sys.stdin.read()
"""
LEAVES_AT_ONCE = """
import os, signal
from dpbench.run.interrupts import end_at_once
from dpbench.temporary import temporary_folder
end_at_once()
with temporary_folder() as folder:
    os.kill(os.getpid(), signal.SIGTERM)
"""


FORKS = """
import multiprocessing
from pathlib import Path
from multiprocessing import util
from dpbench.temporary import keep_sockets_in_own_folder, temporary_folder
keep_sockets_in_own_folder()
with temporary_folder() as folder:
    child = multiprocessing.get_context("fork").Process(target=print, args=("child",))
    child.start()
    child.join()
    print(Path(util.get_temp_dir()).is_dir(), folder.is_dir())
"""


def owner(tmp: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env={**environment(), "TMPDIR": str(tmp)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_what_a_killed_process_left_is_removed_at_the_next_start_and_nothing_else(
    tmp_path: Path,
) -> None:
    others = tmp_path / "dpbench-results"  # what a user called his folder
    others.mkdir()
    link = tmp_path / "dpbench-link"
    link.symlink_to(others)
    killed = owner(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    left = {path for path in tmp_path.iterdir() if path not in (others, link)}
    assert len(left) == 2
    alive = owner(tmp_path)
    own = {path for path in tmp_path.iterdir() if path not in (others, link)}
    assert not own & left
    other = owner(tmp_path)
    assert own < {*tmp_path.iterdir()}
    for process in (alive, other):
        process.communicate()
    assert {*tmp_path.iterdir()} == {others, link}


def test_a_signal_that_ends_the_process_at_once_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_AT_ONCE],
        env={**environment(), "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


def test_a_forked_process_leaves_the_folders_of_its_parent_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        env={**environment(), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "child\nTrue True\n", done.stderr
    assert not list(tmp_path.iterdir())
