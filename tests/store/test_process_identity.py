"""A process is known by more than its number, which another one may have by now."""

from __future__ import annotations

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


def test_what_is_not_there_has_no_start() -> None:
    assert started_ticks(2**22 + 1) == 0
