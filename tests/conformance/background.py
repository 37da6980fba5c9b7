"""A process that runs torch's tests, for test functions that ask for the outcome of one each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
NOT_CONNECTED = "Gloo connectFullMesh failed"
"""What gloo says when its ranks, on a busy machine, do not find each other: no test is about it."""
COMMAND = (sys.executable, "-m", "tests.conformance", "--serve")
IS_PINNED = (
    f"torch=={torch.__version__.partition('+')[0]}\n" in (ROOT / "constraints.txt").read_text()
)


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

    def outcomes(self, label: str, world_size: int, names: Sequence[str]) -> list[dict[str, Any]]:
        """Of tests, which share their ranks as long as they pass: status, detail and seconds.

        For labels see `tests.conformance`.
        """
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


class Results:
    """Outcomes of all tests of a set, which run when the first is asked for."""

    def __init__(self, server: Server, label: str) -> None:
        self._server = server
        self._label = label
        self._of_set = cache(self._run)

    def require(self, world_size: int, names: tuple[str, ...], name: str) -> None:
        """A test has passed, if need be a second time, where gloo did not connect its ranks."""
        result = self._of_set(world_size, names)[name]
        if result["status"] == "failed" and NOT_CONNECTED in result["detail"]:
            [result] = self._server.outcomes(self._label, world_size, (name,))
        if result["status"] == "missing" and not IS_PINNED:
            pytest.skip("this version of torch has no such test")
        assert result["status"] == "passed", result["detail"]

    def _run(self, world_size: int, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        outcomes = self._server.outcomes(self._label, world_size, names)
        return {outcome["name"]: outcome for outcome in outcomes}
