"""dpbench explain as people call it: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.analysis.subject import of_folder
from dpbench.cli.app import run
from dpbench.records.trial import HostLoad, Status
from dpbench.report.page import build_page
from dpbench.store import load
from tests.analysis.builders import noisy_sweep, record, runs, steps_of, trial, weak_sweep
from tests.analysis.builders import run as throughput
from tests.cli.command import dpbench
from tests.cli.stored import stored


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return stored(tmp_path / "demo", [record for i in range(3) for record in weak_sweep(i)])


def test_the_fastest_row_is_explained_unless_others_are_chosen(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("ddp/gloo ×2, batch 32 reaches 50.0 ± 0 % of linear")
    assert run(["explain", str(folder), "--group-sizes", "1"]) == 0
    assert capsys.readouterr().out.startswith("ddp/gloo ×1")
    arguments = ["--implementation", "ddp", "--backend", "gloo", "--group-size", "2"]
    assert run(["explain", str(folder), "--json", *arguments]) == 0
    (only,) = json.loads(capsys.readouterr().out)["configurations"]
    assert (only["implementation"], only["group_size"]) == ("ddp", 2)
    assert only["efficiency"]["value"] == pytest.approx(0.5)
    assert not (folder / "report").exists()


def test_what_is_too_noisy_is_neither_explained_nor_advised_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(stored(tmp_path / "noisy", noisy_sweep()))
    assert run(["explain", folder]) == 0
    assert capsys.readouterr().out.startswith("dp ×2, batch 32 reaches ")
    assert run(["explain", folder, "--implementations", "ddp", "--group-sizes", "2"]) == 2
    words = (
        "ddp/gloo ×2, batch 32 is too noisy to explain: ddp/gloo ×2, batch 32 reached 1,800 "
        "(0–62,600) images/s in 3 repetitions; measure again with more --repetitions"
    )
    seen = f"; `dpbench report {folder}` shows what was measured"
    assert capsys.readouterr().err == f"dpbench: {folder}: {words}{seen}\n"
    words = "too noisy to explain: ddp/gloo ×2, batch 32; measure again with more --repetitions"
    assert run(["explain", folder, "--implementations", "ddp"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("ddp/gloo ×1, batch 32 reaches ")
    assert words in printed
    assert printed.count("ddp/gloo ×2") == 1
    assert run(["explain", folder, "--implementations", "dp"]) == 0
    assert "too noisy" not in capsys.readouterr().out


def test_the_row_that_makes_another_too_noisy_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild, steady = (100.0, 400.0), (150.0, 151.0)
    records = [*runs(trial(), wild), *runs(trial(group_size=2), steady)]
    assert run(["explain", str(stored(tmp_path / "noisy", records))]) == 2
    assert (
        ": ddp/gloo ×2, batch 32 is too noisy to explain: ddp/gloo ×1, batch 32 reached 200 "
        "(0–1,336,530) images/s in 2 repetitions; measure again with more --repetitions; "
    ) in capsys.readouterr().err


def test_only_failed_rows_cannot_be_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = record(trial(), status=Status.FAILED, reason="rank 1 ended with signal 9")
    assert run(["explain", str(stored(tmp_path / "failed", [failed]))]) == 2
    end = "(ddp/gloo ×1, batch 32 failed: rank 1 ended with signal 9)\n"  # --resume repeats nothing
    assert capsys.readouterr().err.endswith(end)
    alone = throughput(trial("single", "none"), 100.0)
    assert run(["explain", str(stored(tmp_path / "one", [alone]))]) == 2
    assert capsys.readouterr().err.endswith("no row has a speed to compare with `single`\n")


def test_json_has_rows_that_are_too_noisy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(stored(tmp_path / "noisy", noisy_sweep()))
    for chosen in ([], ["--implementations", "ddp", "--group-sizes", "2"]):
        assert run(["explain", folder, "--json", *chosen]) == 0
        rows = json.loads(capsys.readouterr().out)["configurations"]
        noisy = {(r["implementation"], r["group_size"]) for r in rows if r["too_noisy"]}
        assert noisy == {("ddp", 2)}


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
