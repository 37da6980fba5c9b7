"""Runs `dpbench` as a user does, in a process of its own; or one command of it in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner, Result

ROOT = Path(__file__).parent.parent.parent


def environment() -> dict[str, str]:
    """The tests' own modules are importable, as a user's are from where they work."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"}


def dpbench(*arguments: str, cwd: Path, timeout: float = 90) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dpbench", *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def start(*arguments: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """The same in the background, as the leader of a process group of its own, with more
    environment variables."""
    return subprocess.Popen(
        [sys.executable, "-m", "dpbench", *arguments],
        cwd=cwd,
        env={**environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def invoker(command: Callable[..., Any]) -> Callable[..., Result]:
    """A function that runs the command with its arguments; what it raises is raised."""
    app = typer.Typer()
    app.command()(command)
    app.callback()(lambda: None)  # makes it a command among others
    name = command.__name__

    def invoke(*arguments: str | Path) -> Result:
        result = CliRunner().invoke(app, [name, *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke
