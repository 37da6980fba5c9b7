"""Git commands that read the user's repositories and change nothing in them.

Git sets GIT_DIR, GIT_INDEX_FILE and others for the hooks that it runs. A command that inherits them
works on that repository and that index, whatever its working directory is.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def without_git_variables() -> dict[str, str]:
    """The environment variables of this process, except those that point Git at a repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def run_git(
    *arguments: str, folder: Path | None = None, limit_seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Git in `folder`, by default the working directory, without hooks.

    Raises OSError if there is no Git, subprocess.TimeoutExpired.
    """
    # `git diff` would rewrite the index to refresh it.
    own_variables = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    return subprocess.run(
        ["git", "-c", "core.hooksPath=/dev/null", *arguments],
        cwd=folder,
        env=without_git_variables() | own_variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=limit_seconds,
    )
