"""dpbench explain as people call it: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.records.trial import Status
from tests.analysis.builders import noisy_sweep, record, runs, trial, weak_sweep
from tests.analysis.builders import run as throughput
from tests.cli.stored import stored

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "torch_ddp_rtx3090.csv"


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--group-size", "3"],
            "no such row; there are --implementations ddp, independent; --backends",
        ),
        (["--implementation", "single"], "nothing to explain in single ×1, batch 32; there are"),
        (["--batch-sizes", "x"], "--batch-sizes: got 'x'; expected a whole number"),
    ],
)
def test_a_filter_that_matches_nothing_is_refused(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", str(folder), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert words in printed.err


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
    assert capsys.readouterr().err == f"dpbench: {folder}: {words}\n"
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
        "(0–1,336,530) images/s in 2 repetitions; measure again with more --repetitions\n"
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
