"""Signals that are ignored where a command is started stay ignored."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpbench.launch.torchrun import read_arguments as read
from tests.cli.command import environment

pytestmark = pytest.mark.slow

LONG = "import pathlib, time\npathlib.Path('started').touch()\ntime.sleep(1)\nprint('the end')\n"


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    """As with nohup, for a launch and its rank; tests/faults has it for a sweep."""
    (tmp_path / "long.py").write_text(LONG)
    words = f"{shlex.quote(sys.executable)} -m dpbench launch --nproc-per-node 1 long.py"
    running = subprocess.Popen(
        ["sh", "-c", f"trap '' HUP INT; exec {words}"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    for number in (signal.SIGHUP, signal.SIGINT):
        os.killpg(running.pid, number)
    printed, _ = running.communicate(timeout=120)
    assert running.returncode == 0, printed


def test_the_agent_handles_what_is_not_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        chosen = read(["--signals-to-handle", "SIGUSR1, SIGHUP,NONSUCH", __file__])
        assert chosen.signals_to_handle == "SIGUSR1,NONSUCH"
    finally:
        signal.signal(signal.SIGHUP, before)
