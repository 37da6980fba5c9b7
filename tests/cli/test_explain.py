"""dpbench explain as people call it: what it prints and writes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.records.trial import HostLoad
from tests.analysis.builders import steps_of
from tests.cli.stored import stored


def test_under_load_the_clear_factors_of_a_noisy_row_are_stated_after_the_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine slows whole repetitions: the ranks' wait for each other stays 20 % of a step."""
    busy = HostLoad(cores=2, during=1.8, stolen=0.0)
    records = [
        replace(one, host_load=busy)
        for number, slower in enumerate((1.0, 9.0, 0.6))
        for one in (
            steps_of("single", [0.01], None, repetition=number),
            steps_of("ddp", [0.015 * slower] * 2, [0.012 * slower] * 2, repetition=number),
        )
    ]
    folder = stored(tmp_path / "busy", records)
    assert run(["explain", str(folder)]) == 4
    load, verdict, *rest = capsys.readouterr().out.split("\n\n")
    assert load.startswith("· other processes used 90 % of 2 cores")
    assert verdict.startswith("No efficiency: ddp/gloo ×2, batch 32 varied from ")
    table = rest[0].splitlines()
    shares = {line.split("  ")[0]: line for line in table}
    assert shares["communication"].split()[1:6] == ["0.800", "±", "0", "20.0", "±"]
    assert shares["contention and wrapper"].split()[3:7] == ["too", "noisy", "too", "noisy"]
