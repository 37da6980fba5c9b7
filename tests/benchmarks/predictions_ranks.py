"""Is a step of two ranks predicted from the trace of one and the collectives of two?

Real sweeps through the command line, as a user would run them: `sweep`, `comm` into the same
folder, `project`. Each figure is one group of two that was both measured and simulated; no step in
which its ranks met enters the simulation.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.figure import Figure

TOLERANCE = 0.10
BATCH_SIZES = "32,128"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of an architecture is measured: as much as takes some minutes."""

    warmup_steps: int
    timed_steps: int
    traced_steps: int
    repetitions: int


EFFORTS = {
    "mlp": Effort(20, 100, 20, 4),
    "mnist_cnn": Effort(5, 30, 10, 4),
    "gpt": Effort(1, 5, 2, 2),
    "resnet": Effort(1, 4, 2, 2),
}


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        for architecture in EFFORTS:
            for row in _predicted(architecture, Path(folder)):
                yield _figure(architecture, row)


def _predicted(architecture: str, results: Path) -> list[dict[str, Any]]:
    """The rows of `project` at group size 2."""
    effort = EFFORTS[architecture]
    place = ("--name", architecture, "--results-dir", str(results), "--quiet")
    _dpbench(
        *("sweep", "--arch", architecture, "--gpus", "2", "--batch-sizes", BATCH_SIZES),
        *("--implementations", "ddp,independent", "--backends", "gloo,shm"),
        *("--steps", str(effort.timed_steps), "--warmup", str(effort.warmup_steps)),
        *("--gradient-steps", str(effort.traced_steps), "--phases", "0"),
        *("--repetitions", str(effort.repetitions)),
        *place,
    )
    _dpbench("comm", "--gpus", "2", "--backends", "gloo,shm", "--sizes", "64B-64MiB", *place)
    told = _dpbench("project", str(results / architecture), "--group-sizes", "2", "--json")
    series: list[dict[str, Any]] = json.loads(told)["series"]
    return [{**one, **row} for one in series for row in one["rows"]]


def _dpbench(*arguments: str) -> str:
    """What the command prints; its errors go to the terminal."""
    command = [sys.executable, "-m", "dpbench", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def _figure(architecture: str, row: dict[str, Any]) -> Figure:
    error = row["simulation_error"]
    measured, simulated = (
        1e3 * seconds["value"]
        for seconds in (row["step_seconds"], row["simulated"]["step_seconds"])
    )
    series = f"{row['implementation']}/{row['backend']}, batch {row['batch_size']}"
    return Figure(
        name=f"step of {architecture}, {series}, two ranks: simulated against measured",
        value=f"{error:+.1%} ({simulated:.2f} ms, measured {measured:.2f} ms)",
        target=f"within {TOLERANCE:.0%}",
        met=abs(error) <= TOLERANCE,
    )
