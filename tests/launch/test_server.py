"""The processes that Python keeps beside those that dpbench starts."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpbench.launch.machine import in_child
from tests.cli.command import environment

pytestmark = pytest.mark.slow

STARTS_A_SERVER = """
from multiprocessing import util
from dpbench.launch.machine import in_child
if __name__ == "__main__":
    print(in_child(util.get_temp_dir) == util.get_temp_dir())
"""
KILLS_THE_TRACKER = """
import os
import signal
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from dpbench.launch.agent import run_ranks
from dpbench.launch.server import fork_server

def kill(pid, rank):
    os.kill(pid, signal.SIGKILL)
    return rank

if __name__ == "__main__":
    fork_server()
    for number in range(2):
        tracker = resource_tracker._resource_tracker._pid
        with TemporaryDirectory() as folder:
            print(run_ranks(partial(kill, tracker), 1, Path(folder), 60.0))
"""


@pytest.mark.parametrize("length", [88, 200], ids=lambda length: f"{length} bytes")
def test_processes_start_whatever_the_length_of_tmpdir(length: int, tmp_path: Path) -> None:
    """A socket's path has 107 bytes at most."""
    tmp = tmp_path / ("x" * (length - len(os.fsencode(tmp_path)) - 1))
    tmp.mkdir()
    script = tmp_path / "script.py"
    script.write_text(STARTS_A_SERVER)
    done = subprocess.run(
        [sys.executable, script],
        env={**environment(), "TMPDIR": str(tmp)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
    left = [path.name for path in tmp.iterdir()]  # torch has a folder of its own there
    assert not [name for name in left if name.startswith(("dpbench-", "pymp-"))]


def test_a_resource_tracker_that_is_killed_costs_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(KILLS_THE_TRACKER)
    done = subprocess.run(
        [sys.executable, script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[0]\n[0]\n", "", 0)


def imported_and_collecting() -> tuple[bool, bool]:
    return {"dpbench.measure.trial", "torch._dynamo"} <= sys.modules.keys(), gc.isenabled()


def test_what_the_server_forks_has_all_modules_and_collects_garbage() -> None:
    assert in_child(imported_and_collecting) == (True, True)
