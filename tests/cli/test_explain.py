"""dpbench explain as people call it: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.analysis.subject import of_folder
from dpbench.cli.app import run
from dpbench.records.trial import HostLoad
from dpbench.report.page import build_page
from dpbench.store import load
from tests.analysis.builders import runs, steps_of, trial, weak_sweep
from tests.cli.command import dpbench
from tests.cli.stored import stored


def test_the_row_that_makes_another_too_noisy_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild, steady = (100.0, 400.0), (150.0, 151.0)
    records = [*runs(trial(), wild), *runs(trial(group_size=2), steady)]
    assert run(["explain", str(stored(tmp_path / "noisy", records))]) == 4
    words = "No efficiency: ddp/gloo ×1, batch 32 varied from 100 to 400 images/s between 2"
    assert words in capsys.readouterr().out


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


def test_the_page_gives_the_same_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """shm is too noisy to state, but was tried: neither advises to try it. The machine was busy."""
    records = [record for i in range(4) for record in weak_sweep(i)]
    times = (0.010, 0.090, 0.011, 0.060)
    shm = [
        steps_of("ddp", [t, t], [0.008, 0.008], backend="shm", repetition=number)
        for number, t in enumerate(times)
    ]
    busy = HostLoad(cores=2, during=1.0, stolen=0.0)
    everything = [replace(one, host_load=busy) for one in (*records, *shm)]
    folder = stored(tmp_path / "both", everything)
    assert run(["explain", str(folder), "--group-sizes", "2", "--backends", "gloo"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    said = [line for line in advice_lines_of(folder) if "exposed communication" in line]
    assert said
    assert all(line in printed for line in said)
    assert not any("shm" in line for line in said)


def advice_lines_of(folder: Path) -> tuple[str, ...]:
    return build_page(of_folder(load(folder))).advice


SLEEPING = """
import time, torch

def make():
    def batch(n, generator=None):
        return torch.zeros(n, 4), torch.zeros(n, 1)

    return torch.nn.Linear(4, 1), batch, torch.nn.functional.mse_loss

class Sleeping(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.zeros(4), torch.zeros(1)

dataset = Sleeping
"""


@pytest.mark.full
def test_a_dataset_that_sleeps_on_every_rank_is_the_advice(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SLEEPING)
    words = (
        *("sweep", "--arch", "mine.py:make", "--data", "mine.py:dataset", "--gpus", "2"),
        *("--implementations", "ddp", "--group-sizes", "2", "--batch-sizes", "32", "--name", "s"),
        *("--steps", "10", "--warmup", "2", "--repetitions", "3", "--no-charts", "--quiet"),
        "--oversubscribe",
    )
    assert dpbench(*words, cwd=tmp_path).returncode == 0
    done = dpbench("explain", "results/s", "--json", cwd=tmp_path)
    (row,) = json.loads(done.stdout)["configurations"]
    first = row["advice"][0]
    assert (first["kind"], first["share_of_step"] > 0.5) == ("data", True)
    assert first["text"].startswith(
        "loading data, on every rank: try --prefetch 2 --data-workers 2, "
    )
