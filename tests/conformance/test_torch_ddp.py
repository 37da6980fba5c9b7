"""torch's own tests pass: of collectives on shm, and of its wrapper with ours in its place."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

ROOT = Path(__file__).parent.parent.parent
CHOSEN = tomllib.loads(Path(__file__).with_name("tests.toml").read_text())
WRAPPERS, COLLECTIVES = (tuple(CHOSEN[name]["names"]) for name in ("wrappers", "collectives"))
NOT_CONNECTED = "Gloo connectFullMesh failed"
"""What gloo says when its ranks, on a busy machine, do not find each other: no test is about it."""
IS_PINNED = (
    f"torch=={torch.__version__.partition('+')[0]}\n" in (ROOT / "constraints.txt").read_text()
)


def run(label: str, world_size: int, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run tests with what a label of `tests.conformance` stands for; the outcomes by name.

    In a process of their own: torch's test module wants to be imported under its own environment,
    and its ranks are forks of a process without threads.
    """
    command = [sys.executable, "-m", "tests.conformance", label, "--json"]
    done = subprocess.run(
        [*command, "--world-size", str(world_size), *names],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(outcomes) == len(names), done.stdout
    return {outcome["name"]: outcome for outcome in outcomes}


all_of = cache(run)


def require(label: str, world_size: int, names: tuple[str, ...], name: str) -> None:
    """A test has passed, if need be a second time, where gloo did not connect its ranks."""
    outcome = all_of(label, world_size, names)[name]
    if outcome["status"] == "failed" and NOT_CONNECTED in outcome["detail"]:
        outcome = run(label, world_size, [name])[name]
    if outcome["status"] == "missing" and not IS_PINNED:
        pytest.skip("this version of torch has no such test")
    assert outcome["status"] == "passed", outcome["detail"]


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("label", ["ddp-gloo", "ddp-shm"])
def test_ours_passes(label: str, name: str) -> None:
    require(label, CHOSEN["wrappers"]["ranks"], WRAPPERS, name)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_shm_passes(name: str) -> None:
    require("shm", CHOSEN["collectives"]["ranks"], COLLECTIVES, name)
