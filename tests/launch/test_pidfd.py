"""A handle of a process ends with it, and a system without such handles is told before any rank."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from dpbench.errors import LaunchError
from dpbench.launch import pidfd
from dpbench.launch.ranks import run_ranks


def test_a_process_is_killed_by_its_handle_and_never_another_one() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        handle = pidfd.open_process(process.pid)
        pidfd.send_signal(handle, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    assert ended.poll(0)
    assert not os.get_inheritable(handle)
    with pytest.raises(ProcessLookupError):
        pidfd.send_signal(handle, signal.SIGKILL)
    os.close(handle)
    with pytest.raises(ProcessLookupError):
        pidfd.open_process(process.pid)


def test_without_handles_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pidfd, "PIDFD_OPEN", 999_999)
    with pytest.raises(LaunchError, match=r"pidfd_open: Function not.*expected Linux 5\.3"):
        run_ranks(print, 1, tmp_path, 10)
