"""dpbench fit as people call it: tables, rows, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dpbench.cli.app import run
from tests.analysis.builders import steps_of
from tests.cli.test_explain import stored

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
WEAK = str(PUBLISHED / "weak_scaling.csv")
KEYS = ("series", "group_size", "throughput", "low", "high", "kind")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two implementations at 1, 2 and 4 replicas, 3 repetitions; and `single`, at 1 alone."""
    times = {"ddp": (0.100, 0.110, 0.112), "dp": (0.100, 0.120, 0.150)}
    records = [
        steps_of(
            name,
            [seconds * (1 + 0.01 * repetition)] * (size if name == "ddp" else 1),
            group_size=size,
            repetition=repetition,
        )
        for name, row in times.items()
        for size, seconds in zip((1, 2, 4), row, strict=True)
        for repetition in range(3)
    ]
    records.append(steps_of("single", [0.1]))
    return stored(tmp_path / "demo", records)


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], str]:
    def write(rows: str) -> str:
        path = tmp_path / "table.csv"
        path.write_text("batch_per_gpu,gpus,seconds_per_step\n" + rows)
        return str(path)

    return write


def test_published_series_as_rows(capsys: Capture) -> None:
    arguments = ["--train-up-to", "8", "--predict", "16,64", "--json"]
    assert run(["fit", "-v", WEAK, *arguments]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 15 * 2
    assert all(tuple(row)[: len(KEYS)] == KEYS for row in rows)
    for row in rows:
        if row["group_size"] == 64:
            assert row["kind"] == "refused"
            assert row["throughput"] is row["low"] is row["high"] is None
            assert "8 × the largest measured group size" in row["reason"]
        elif "VGG16" in row["series"] and row["series"].endswith("32"):
            assert row["kind"] == "refused"
            assert row["reason"].startswith("the law misses the measured step at ")
        else:
            assert (row["kind"], row["reason"]) == ("extrapolated", None)
            assert row["low"] < row["throughput"] < row["high"]
    withheld = [row for row in rows if row["withheld_throughput"]]
    assert len(withheld) == 4
    assert all(row["low"] <= row["withheld_throughput"] <= row["high"] for row in withheld)


def test_all_kinds(capsys: Capture) -> None:
    assert run(["fit", "-v", WEAK, "--train-up-to", "8", "--predict", "4,5,16,33", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    kinds = ["measured", "interpolated", "extrapolated", "refused"]
    assert [row["kind"] for row in rows[:4]] == kinds
    assert rows[1]["low"] < rows[1]["throughput"] < rows[1]["high"]


def test_withheld_points_stand_beside_their_predictions(capsys: Capture) -> None:
    assert run(["fit", "-v", WEAK, "--train-up-to", "8"]) == 0
    out = capsys.readouterr().out
    assert "2,850 (2,180–2,940)" in out  # of ResNet-101 at 16
    assert "4,923.1 (-0.2 %)" in out
    assert "bytes through the slowest link" in out
    assert "leave-one-out error" in out
    assert "the overhead saturates" in out


def test_a_sweep_has_noise(folder: Path, capsys: Capture) -> None:
    assert run(["fit", "-v", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "ddp/gloo, batch 32" in printed.out
    assert "one after the other" in printed.out
    assert "noise is not known" not in printed.out
    assert "left out" not in printed.err
    # dp is fitted with lin, which the band was not calibrated with.
    assert "may be too narrow: dp, batch 32" in " ".join(printed.out.split())


def test_a_band_from_ones_own_hold_outs(tmp_path: Path, capsys: Capture) -> None:
    shipped = (PUBLISHED / "hold_outs" / "weak_scaling.csv").read_text()
    own = tmp_path / "own.csv"
    own.write_text(f"{shipped}slow,8,16,100,200\n")  # twice as slow as predicted
    common = ["fit", WEAK, "--train-up-to", "8", "--predict", "16", "--json"]
    lows = []
    for more in ([], ["--residuals", str(own)]):
        assert run([*common, *more]) == 0
        lows.append(json.loads(capsys.readouterr().out)[0]["low"])
    assert lows[1] < lows[0]


def test_a_baseline_of_several_replicas(table: Callable[[str], str], capsys: Capture) -> None:
    path = table("32,8,0.1\n32,16,0.11\n32,32,0.12\n")
    assert run(["fit", "-v", path]) == 2
    assert "no baseline at group size 1; measure it, or name another" in capsys.readouterr().err
    assert run(["fit", "-v", path, "--baseline", "8"]) == 0
    assert "against group size 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "arguments", "words"),
    [
        ("32,1,0.1\n", [], "at least two group sizes, got 1"),
        ("32,1,0.1\n32,2,0\n", [], "line 3, column 'seconds_per_step': expected a number"),
        ("32,1,0.1\n32,2,-1\n", [], "got '-1'"),
        ("32,1,0.1\n32,2,\n", [], "got ''"),
        ("32,1,0.1\n64,1,0.2\n", [], "batch 32: a fit takes at least two group sizes, got 1"),
        ("32,1,0.1\n32,2,0.1\n32,2,0.1\n", [], "each group size of a series once"),
        ("32,2,0.1\n32,4,0.1\n", [], "no baseline at group size 1"),
        ("32,1,0.1\n32,2,0.1\n", ["--train-up-to", "1"], "got 1 with --train-up-to 1"),
        ("32,1,0.1\n32,2,0.1\n", ["--basis", "const,lgo"], "Did you mean 'log'?"),
        ("32,1,0.1\n32,2,0.1\n", ["--predict", "8,x"], "--predict: 'x' is not a positive"),
        ("32,1,0.1\n32,2,0.1\n", ["--residuals", "none.csv"], "cannot read none.csv"),
    ],
)
def test_bad_input_takes_one_line(
    table: Callable[[str], str],
    rows: str,
    arguments: list[str],
    words: str,
    capsys: Capture,
) -> None:
    assert run(["fit", "-v", table(rows), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("dpbench: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_a_fixed_amount_of_work_is_taken_to_be_steps_of_a_fixed_batch_per_replica(
    capsys: Capture,
) -> None:
    assert (
        run(["fit", "-v", str(PUBLISHED / "tabtune_tabicl.csv"), "--predict", "16", "--json"]) == 0
    )
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["kind"], row["unit"]) == ("extrapolated", "runs/day")
    # 20 minutes on 8; keeping their efficiency, 10 on 16.
    assert row["last_efficiency_throughput"] == pytest.approx(144)
    assert 72 < row["throughput"] < 144
    assert run(["fit", "-v", str(PUBLISHED / "tabtune_tabicl.csv")]) == 0
    assert "a fixed batch per replica" in " ".join(capsys.readouterr().out.split())


def test_a_folder_of_one_group_size_says_what_to_measure(tmp_path: Path, capsys: Capture) -> None:
    records = [steps_of("single", [0.1]), steps_of("ddp", [0.1])]
    assert run(["fit", "-v", str(stored(tmp_path / "one", records))]) == 2
    err = capsys.readouterr().err
    assert "at least two group sizes of a series, got one of each (1); measure more" in err
    assert "dpbench sweep --group-sizes 1,2,4" in err


def test_what_the_sizes_cannot_tell_is_said(table: Callable[[str], str], capsys: Capture) -> None:
    assert run(["fit", "-v", table("32,1,0.1\n32,16,0.2\n"), "--predict", "2,32"]) == 0
    out = capsys.readouterr().out
    assert "0 (up to 107 ms) × (n-1)/n" in out
    assert "0 (up to 25 ms) × log2 n" in out
    assert "cannot tell ring from log from saturated" in " ".join(out.split())
    assert "the prediction keeps the last efficiency" in " ".join(out.split())


def test_errors_of_rounding_and_fractions_below_zero(
    table: Callable[[str], str], capsys: Capture
) -> None:
    assert run(["fit", "-v", table("32,1,0.1\n32,2,0.1\n32,4,0.1\n"), "--basis", "const"]) == 0
    out = capsys.readouterr().out
    assert "leave-one-out error < 0.01 %; keeping the last efficiency < 0.01 %" in out
    assert "may be too narrow: batch 32" in out
    assert run(["fit", "-v", table("32,1,0.1\n32,2,0.09\n32,4,0.08\n")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "below zero scaling is faster than linear" in out
    assert "grows faster than a serial part" not in out


def test_speedups_have_no_seconds(capsys: Capture) -> None:
    path = str(PUBLISHED / "tabtune_typical_speedups.csv")
    assert run(["fit", "-v", path, "--predict", "16"]) == 0
    out = capsys.readouterr().out
    assert "in steps of one replica" in out
    assert " ms" not in out
    assert run(["fit", "-v", path, "--predict", "16", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["unit"], row["step_seconds"]) == ("×", None)
