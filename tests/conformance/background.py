"""A process that runs torch's tests one by one, for test functions that ask for one each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
COMMAND = (sys.executable, "-m", "tests.conformance", "--serve")


class Server:
    """`python -m tests.conformance --serve`: it imports torch's tests once, for seconds.

    torch's test module wants to be imported under its own environment, and its ranks are forks of
    a process without threads; the process that runs pytest is neither.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            COMMAND,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._noise: list[str] = []
        names = self._answer()
        self.every_name = frozenset(names["every_name"])
        """All tests of the installed torch that build a DistributedDataParallel."""
        self.every_collective = frozenset(names["every_collective"])
        """All its other tests."""

    def outcome(self, label: str, world_size: int, name: str) -> dict[str, Any]:
        """Of one test: its status, detail and seconds; for labels see `tests.conformance`."""
        [outcome] = self.outcomes(label, world_size, [name])
        return outcome

    def outcomes(self, label: str, world_size: int, names: Sequence[str]) -> list[dict[str, Any]]:
        """Of several tests, which share their ranks as long as they pass."""
        assert self._process.stdin is not None
        print(label, world_size, *names, file=self._process.stdin, flush=True)
        return [self._answer() for _ in names]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
            self._noise.append(line)
        raise AssertionError(f"the run ended without an answer:\n{''.join(self._noise)}")

    def close(self) -> None:
        """Kill the process and its ranks if it has not ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:
            pass
