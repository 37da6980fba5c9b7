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
    [(LEAVES_AT_ONCE, 128 + signal.SIGTERM, ""), (FORKS, 0, "child\nTrue\n")],
    ids=["signal", "fork"],
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
