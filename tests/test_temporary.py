"""Temporary folders end with their process, and are never taken for another's."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment

LEAVES_AT_ONCE = """
import os, signal
from dpbench.run.interrupts import end_at_once
from dpbench.temporary import temporary_folder
end_at_once()
with temporary_folder() as folder:
    os.kill(os.getpid(), signal.SIGTERM)
"""
LEAVES_A_SERVER = """
import os, signal
from dpbench.launch.fork_server import fork_server
from dpbench.run.interrupts import end_at_once
end_at_once()
fork_server()
os.kill(os.getpid(), signal.SIGQUIT)
"""
FORKS = """
import multiprocessing
from dpbench.temporary import temporary_folder
with temporary_folder() as folder:
    child = multiprocessing.get_context("fork").Process(target=print, args=("child",))
    child.start()
    child.join()
    print(folder.is_dir())
"""


@pytest.mark.parametrize(
    ("code", "status", "printed"),
    [
        (LEAVES_AT_ONCE, 128 + signal.SIGTERM, ""),
        (LEAVES_A_SERVER, 128 + signal.SIGQUIT, ""),
        (FORKS, 0, "child\nTrue\n"),
    ],
    ids=["signal", "signal with a server of ranks", "fork"],
)
def test_folder_lifetime(tmp_path: Path, code: str, status: int, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment(), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, printed), done.stderr
    assert not list(tmp_path.iterdir())
