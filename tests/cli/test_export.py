"""dpbench export: every level in every format, to stdout and to files."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from dpbench import store
from dpbench.analysis.frames import step_frame, step_rows, to_frame
from dpbench.analysis.levels import LEVELS
from dpbench.analysis.summary import summarize
from dpbench.cli.app import run
from dpbench.records.environment import capture
from dpbench.report.export.write import SUFFIXES
from dpbench.store import CollectiveStore, SweepStore
from tests.analysis.communication.collective_records import affine, collective_record
from tests.builders import collective_spec, sweep_spec
from tests.report.sample import sample_records

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
RECORDS = [
    record for record in sample_records(timed_steps=5) if record.trial.implementation != "dp"
]
"""dp has a rank for each replica there, which no file may have."""
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("results") / "demo"
    with SweepStore.create(made, sweep_spec(), ["dpbench", "sweep"]) as sweep:
        sweep.add_environment(capture())
        for record in RECORDS:
            sweep.append(record)
    with CollectiveStore.append_to(made, ["dpbench", "comm"]) as collectives:
        collectives.append(collective_record(collective_spec(), affine(1e-5, 1e9)))
    return made


def export(*arguments: object) -> int:
    return run(["export", *map(str, arguments)])


@pytest.mark.parametrize(
    ("level", "suffix"),
    [*((level, ".csv") for level in LEVELS), *(("rank", suffix) for suffix in SUFFIXES)],
)
def test_every_level_and_every_format(
    folder: Path, tmp_path: Path, level: str, suffix: str
) -> None:
    file = tmp_path / f"rows{suffix}"
    assert export(folder, "--level", level, "--output", file) == 0
    assert b"gloo" in file.read_bytes()
    assert list(tmp_path.iterdir()) == [file]


def test_configurations_are_csv_with_all_keys_unless_asked_otherwise(
    folder: Path, capsys: Capture
) -> None:
    assert export(folder) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0]) == [field.key for field in LEVELS["configuration"]]
    failed = next(row for row in rows if row["status"] == "failed")
    assert failed["reason"].startswith("1 of 3 repetitions failed: rank 1")
    assert failed["images_per_second_sample_size"] == "2"
    assert failed["images_per_second_basis"] == "repetitions"


def test_columns_are_kept_in_their_order(folder: Path, capsys: Capture) -> None:
    assert export(folder, "--columns", "status,images_per_second_low", "--format", "json") == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert list(row) == ["status", "images_per_second_low"]
    assert export(folder, "--level", "step", "--columns", "step,seconds") == 0
    assert capsys.readouterr().out.splitlines()[0] == "step,seconds"
    assert export(folder, "--columns", "seed") == 0
    header = capsys.readouterr().out.splitlines()[0]
    assert header == "backend,group_size,batch_size,images_per_second"


def test_json_has_the_rows_of_the_library(folder: Path, capsys: Capture) -> None:
    expected = list(step_rows(store.load(folder).records))
    assert export(folder, "--level", "step", "--format", "json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == expected
    assert "3 of 45 trials measured nothing and have no row" in captured.err


def test_parquet_has_the_types_of_the_frames(folder: Path, tmp_path: Path) -> None:
    records = store.load(folder).records
    file = tmp_path / "steps.parquet"
    assert export(folder, "--level", "step", "--output", file) == 0
    found, expected = pd.read_parquet(file), step_frame(records)
    assert found["seconds"].tolist() == expected["seconds"].tolist()
    assert found["group_size"].dtype == "int64"
    assert export(folder, "--output", file, "--columns", "implementation,speedup,reason") == 0
    found = pd.read_parquet(file)
    assert list(found.columns) == ["implementation", "speedup", "reason"]
    summary = to_frame(summarize(records))
    assert found["reason"].isna().tolist() == summary["reason"].isna().tolist()


def test_documents_show_configurations_with_their_intervals(folder: Path, capsys: Capture) -> None:
    assert export(folder, "--format", "latex", "--columns", "implementation,speedup") == 0
    captured = capsys.readouterr()
    assert (
        r"\caption{demo: mnist\_cnn, 17 configurations; $\pm$ is the 95 \% interval" in captured.out
    )
    assert r"independent & 1.98 $\pm$ 0.03 \\" in captured.out
    assert "speedup is against the same implementation" in captured.err


def test_a_published_file_has_configurations_only(capsys: Capture) -> None:
    file = PUBLISHED / "tabtune_tabicl.csv"
    assert export(file, "--format", "json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)[0]["group_size"] == 1
    assert "claims of the source are not keys" in captured.err
    assert export(file, "--level", "step") == 2
    assert "has configurations only; expected a results folder" in capsys.readouterr().err


def test_a_schema_is_printed(tmp_path: Path, capsys: Capture) -> None:
    assert export("--schema", "step-row") == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["properties"]["seconds"]["type"] == "number"
    assert json.loads(printed)["properties"]["window"]["enum"] == ["timed", "without_sync"]
    assert export("--schema", "step-row", "--output", tmp_path / "a.json") == 0
    assert (tmp_path / "a.json").read_text() == printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "xml"], "unknown format 'xml'"),
        (["--level", "steps"], "unknown level 'steps'. Did you mean 'step'?"),
        (["--columns", "speed"], "unknown column 'speed'. Did you mean 'speedup'?"),
        (["--level", "step", "--columns", "seed"], "unknown column 'seed'"),
        (["--level", "step", "--columns", "step,step"], "got step twice"),
        (["--format", "parquet"], "give it a file with --output FILE"),
        (["--output", "."], "that is a folder; expected the name of a file"),
        (["--output", "/nowhere/a.csv"], "cannot write /nowhere/a.csv: No such file"),
        (
            ["--output", "a.xlsx"],
            "--output a.xlsx: expected a name that ends in one of .csv, .json",
        ),
        (["--schema", "sweep"], "is the same for all results; leave"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    folder: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    assert export(folder, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_without_a_path_and_results_there_is_nothing_to_export(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert export() == 2
    assert "results/ holds none; name one" in capsys.readouterr().err


def test_without_pyarrow_it_says_how_to_get_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert export(folder, "--output", tmp_path / "a.parquet") == 2
    assert "pip install 'dpbench[parquet]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("level", ["configuration", "step"])
def test_missing_environments_and_an_empty_sweep_are_said(
    folder: Path, tmp_path: Path, capsys: Capture, level: str
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "environments")
    assert export(tmp_path / "copy", "--level", level) == 0
    assert "is not stored" in capsys.readouterr().err
    SweepStore.create(tmp_path / "empty", sweep_spec(), ["dpbench", "sweep"]).close()
    assert export(tmp_path / "empty", "--level", level) == 0
    assert "no trial has ended yet" in capsys.readouterr().err


def test_the_layout_of_the_seed_says_what_it_leaves_out(folder: Path, capsys: Capture) -> None:
    assert export(folder, "--columns", "seed") == 0
    assert "does not show the implementation" in capsys.readouterr().err


def test_a_table_that_was_exported_is_no_published_one(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "table.csv"
    assert export(folder, "--output", file) == 0
    capsys.readouterr()
    assert export(file) == 2
    assert "is a table that dpbench wrote" in capsys.readouterr().err
