"""Runs `dpbench train` in this process, on trainings that take no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpbench.cli.app import run

TINY = (
    *("--arch", "tests.launch.faulty:Healthy", "--limit-train", "48", "--batch-size", "4"),
    *("--epochs", "2", "--log-interval", "3", "--timeout", "30"),
)
"""6 steps an epoch at group size 2."""


def train(*arguments: object) -> int:
    return run(["train", *map(str, arguments)])


def tiny(*arguments: object) -> int:
    return train(*TINY, "--gpus", 2, *arguments)


def last_object(text: str) -> dict[str, Any]:
    """The last line of what --json prints."""
    content = json.loads(text.splitlines()[-1])
    assert isinstance(content, dict)
    return content


def run_json(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "run.json").read_text())
    assert isinstance(content, dict)
    return content
