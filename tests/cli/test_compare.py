"""dpbench compare as people call it: its sides, what it prints where, and its exit status.

tests/analysis/comparisons has what can be compared, tests/report how it is written.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.records.trial import Status
from tests.analysis.builders import record, runs, trial
from tests.cli.stored import stored

SPEEDS = (100.0, 101.0, 99.0, 100.5, 99.5)
Capture = pytest.CaptureFixture[str]


def test_rows_that_ran_on_neither_side_are_named_below_the_table(
    here: Path, capsys: Capture
) -> None:
    skipped = record(trial(backend="nccl"), status=Status.SKIPPED, reason="no CUDA device")
    for name in "ab":
        stored(here / name, [*runs(trial(), SPEEDS), skipped])
    assert run(["compare", "a", "b"]) == 0
    out = capsys.readouterr().out
    assert "the same within 3 % in 1 of 1 row." in out
    assert "images_per_second was measured on neither side: ddp/nccl" in " ".join(out.split())
