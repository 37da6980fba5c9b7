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
from dpbench.launch.machine import in_child
if __name__ == "__main__":
    in_child(int)
"""


def test_a_tmpdir_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    """A socket's path has 107 bytes at most."""
    tmp = tmp_path / ("x" * (200 - len(os.fsencode(tmp_path))))
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
    assert "is too long for the path of a socket" in done.stderr
    left = [path.name for path in tmp.iterdir()]  # torch has a folder of its own there
    assert not [name for name in left if name.startswith(("dpbench-", "pymp-"))]


def imported_and_collecting() -> tuple[bool, bool]:
    return {"dpbench.measure.trial", "torch._dynamo"} <= sys.modules.keys(), gc.isenabled()


def test_what_the_server_forks_has_all_modules_and_collects_garbage() -> None:
    assert in_child(imported_and_collecting) == (True, True)
