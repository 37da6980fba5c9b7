"""A process is known by more than its number, which another one may have by now."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dpbench.store.process_identity import ProcessIdentity, started_ticks


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_its_text_says_which_process_it_is() -> None:
    me = ProcessIdentity.of(os.getpid())
    assert ProcessIdentity.parse(str(me)) == me


def test_only_the_process_itself_is_killed(child: subprocess.Popen[bytes]) -> None:
    process = ProcessIdentity.of(child.pid)
    earlier = replace(process, started_ticks=process.started_ticks - 1)
    assert not earlier.kill()
    earlier.wait()  # it has ended long ago
    assert child.poll() is None
    assert process.kill()
    assert child.wait(10) == -9
    process.wait()
    assert not process.kill()


def test_a_process_with_many_open_files_waits_too(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """select(2) takes no descriptor beyond 1023."""
    open_handle = os.pidfd_open

    def beyond_select(pid: int) -> int:
        handle = open_handle(pid)
        try:
            return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 1024)
        finally:
            os.close(handle)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        monkeypatch.setattr(os, "pidfd_open", beyond_select)
        process = ProcessIdentity.of(child.pid)
        child.kill()
        process.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_is_not_there_has_no_start() -> None:
    assert started_ticks(2**22 + 1) == 0
