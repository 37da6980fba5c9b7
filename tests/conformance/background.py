"""A run of torch's tests in a process of its own, for test functions that ask for one each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
COMMAND = (sys.executable, "-m", "tests.conformance")


def every_name() -> set[str]:
    """All tests of the installed torch that build a DistributedDataParallel."""
    listed = subprocess.run([*COMMAND, "--list"], cwd=ROOT, capture_output=True, check=True)
    return set(listed.stdout.decode().split())


class Run:
    """`python -m tests.conformance` over some tests, in the order given.

    torch's test module wants to be imported under its own environment, and its ranks are forks of
    a process without threads; the process that runs pytest is neither.
    """

    def __init__(self, label: str, world_size: int, names: Iterable[str]) -> None:
        command = [*COMMAND, f"--{label}", "--json"]
        self._process = subprocess.Popen(
            [*command, f"--world-size={world_size}", *names],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._outcomes: dict[str, dict[str, Any]] = {}
        self._noise: list[str] = []

    def outcome(self, name: str) -> dict[str, Any]:
        """Wait for one test: its status, detail and seconds."""
        while name not in self._outcomes:
            assert self._read(), f"the run ended without {name}:\n{''.join(self._noise)}"
        return self._outcomes[name]

    def passed(self) -> set[str]:
        """Wait for the end of the run: the tests that passed."""
        while self._read():
            pass
        assert self._outcomes, "".join(self._noise)
        return {name for name, got in self._outcomes.items() if got["status"] == "passed"}

    def _read(self) -> bool:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.startswith("{"):
            outcome = json.loads(line)
            self._outcomes[outcome["name"]] = outcome
        else:
            self._noise.append(line)
        return bool(line)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the run and its ranks if it has not ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:
            pass
