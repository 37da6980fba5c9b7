"""Runs `dpbench` as a user does, in a process of its own, and Git."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PATHS = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'site'}"
"""Where commands find the modules of the tests."""


def environment() -> dict[str, str]:
    """The tests' own modules are importable, as a user's are from where they work."""
    return {**os.environ, "PYTHONPATH": PATHS, "NO_COLOR": "1", "COLUMNS": "200"}


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


def git(*words: str, cwd: Path) -> str:
    """What it prints; whoever runs the tests needs no name and no settings."""
    settings = ("user.name=a", "user.email=a@b", "protocol.file.allow=always")
    given = [word for setting in settings for word in ("-c", setting)]
    done = subprocess.run(["git", *given, *words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


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
