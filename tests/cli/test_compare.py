"""dpbench compare as people call it: its sides, what it prints where, and its exit status.

tests/analysis/comparisons has what can be compared, tests/report how it is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.records.trial import Status
from tests.analysis.builders import record, runs, trial
from tests.cli.stored import stored

SPEEDS = (100.0, 101.0, 99.0, 100.5, 99.5)
Capture = pytest.CaptureFixture[str]
Sweeps = Callable[..., Path]


@pytest.fixture
def sweep(here: Path) -> Sweeps:
    """Writes a sweep of ddp on gloo and shm, the latter a tenth faster."""

    def write(name: str, factor: float = 1.0) -> Path:
        gains = {"gloo": 1.0, "shm": 1.1}
        return stored(
            Path(name),
            [
                record
                for backend, gain in gains.items()
                for record in runs(trial(backend=backend), [x * factor * gain for x in SPEEDS])
            ],
        )

    return write


def compare(capsys: Capture, *words: str) -> tuple[str, str]:
    """What it prints on stdout and stderr."""
    capsys.readouterr()
    assert run(["compare", *words]) == 0
    out, err = capsys.readouterr()
    return out, err


def test_metrics_and_limit_are_options(sweep: Sweeps, capsys: Capture) -> None:
    sweep("a")
    sweep("b", 1.01)
    out, _ = compare(capsys, "a", "b", "--json", "--metric", "images_per_second,step_seconds_p50")
    metrics = [row["metric"] for row in json.loads(out)["rows"]]
    assert metrics == 2 * ["images_per_second"] + 2 * ["step_seconds_p50"]
    assert "same within 3 % in 2" in compare(capsys, "a", "b")[0]
    assert "same within" not in compare(capsys, "a", "b", "--within", "0.5%")[0]


def test_rows_that_ran_on_neither_side_are_named_below_the_table(
    here: Path, capsys: Capture
) -> None:
    skipped = record(trial(backend="nccl"), status=Status.SKIPPED, reason="no CUDA device")
    for name in "ab":
        stored(here / name, [*runs(trial(), SPEEDS), skipped])
    out, _ = compare(capsys, "a", "b")
    assert "the same within 3 % in 1 of 1 row." in out
    assert "images_per_second was measured on neither side: ddp/nccl" in " ".join(out.split())
