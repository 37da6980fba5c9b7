"""torch's own tests for its wrapper pass with ours in its place."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conformance.wrappers import NAMES

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

ROOT = Path(__file__).parent.parent.parent
NOT_CONNECTED = "Gloo connectFullMesh failed"
"""What gloo says when its ranks, on a busy machine, do not find each other: no test is about it."""
IS_PINNED = (
    f"torch=={torch.__version__.partition('+')[0]}\n" in (ROOT / "constraints.txt").read_text()
)


def run(label: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run tests with what a label of `tests.conformance` stands for; the outcomes by name.

    In a process of their own: torch's test module wants to be imported under its own environment,
    and its ranks are forks of a process without threads.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance", label, "--json", *names],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(outcomes) == len(names), done.stdout
    return {outcome["name"]: outcome for outcome in outcomes}


all_of = cache(run)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("label", ["ddp-gloo", "ddp-shm"])
def test_ours_passes(label: str, name: str) -> None:
    """If need be at the second try, where gloo did not connect the ranks."""
    outcome = all_of(label, NAMES)[name]
    if outcome["status"] == "failed" and NOT_CONNECTED in outcome["detail"]:
        outcome = run(label, [name])[name]
    if outcome["status"] == "missing" and not IS_PINNED:
        pytest.skip("this version of torch has no such test")
    assert outcome["status"] == "passed", outcome["detail"]
