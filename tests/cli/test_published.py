"""dpbench published as people call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpbench.cli.app import run

ROOT = Path(__file__).parents[2]
WEAK = ROOT / "results" / "published" / "weak_scaling.csv"
Capture = pytest.CaptureFixture[str]


def test_the_error_table_of_the_shipped_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(ROOT)
    assert run(["published"]) == 0
    out = capsys.readouterr().out
    assert "MISSED" not in out
    assert out.count(" reached") >= 6
    # What a band of the other series misses, with its series.
    assert "8x P100 DGX-1, ResNet-50, " in out
    assert "8x P100 DGX-1, VGG16, synthetic, " in out
    assert max(map(len, out.splitlines())) <= 100
    assert "100 % (23 of 23)" in out
    assert "91 % (21 of 23)" in out
    assert "what it covers of that table is no test" in " ".join(out.split())
    assert "tabtune_typical_speedups.csv: not used: the work of a replica is not stated" in out


def test_the_same_for_programs(capsys: Capture) -> None:
    assert run(["published", str(WEAK), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    law = next(row for row in data["errors"] if (row["model"], row["factor"]) == ("law", 2))
    assert law["cases"] == 19
    assert law["median"] <= 0.015
    assert data["coverage"] >= 0.85
    assert data["coverage_leaving_one_series_out"] >= 0.85
    assert len(data["cases"]) == 23


def test_a_table_counts_once(tmp_path: Path, capsys: Capture) -> None:
    assert run(["published", str(WEAK), str(WEAK.parent / "." / WEAK.name), str(WEAK.parent)]) == 0
    assert "23 hold-outs of 15 series" in capsys.readouterr().out
    rows = "batch_per_gpu,gpus,seconds_per_step\n32,1,0.1\n32,2,0.11\n32,4,0.112\n32,8,0.2\n"
    for name in ("mine.csv", "yours.csv"):
        (tmp_path / name).write_text(rows)
    assert run(["published", str(tmp_path), "--json"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [case["series"] for case in cases] == [
        f"{tmp_path / name}: batch 32" for name in ("mine.csv", "yours.csv")
    ]


def test_hold_outs_are_written(tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "hold_outs.csv"
    assert run(["published", str(WEAK), "--residuals", str(target)]) == 0
    assert target.read_text() == (WEAK.parent / "hold_outs" / WEAK.name).read_text()
    assert f"hold-outs in {target}" in capsys.readouterr().err


def test_few_cases_say_what_they_cannot(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "batch_per_gpu,gpus,seconds_per_step\n32,1,0.1\n32,2,0.11\n32,4,0.112\n32,8,0.2\n"
    )
    assert run(["published", str(path)]) == 0
    out = capsys.readouterr().out
    assert "too few cases" in out
    assert "no case" in out
    assert "MISSED" in out


def test_nothing_to_test_on_takes_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["published"]) == 2
    assert "no tables in results/published" in capsys.readouterr().err
    assert run(["published", "."]) == 2
    assert "no tables in .: dpbench published FILE.csv" in capsys.readouterr().err
    assert run(["published", str(WEAK.parent / "torch_ddp_rtx3090.csv")]) == 2
    assert "no series to withhold a group size from" in capsys.readouterr().err
