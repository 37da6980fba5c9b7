"""dpbench report as people call it: what it prints where, and what it writes."""

from __future__ import annotations

import json
import os
import webbrowser
from pathlib import Path
from typing import get_args

import pandas as pd
import pytest

from dpbench.analysis.frames import to_frame
from dpbench.cli.report import report
from dpbench.errors import StoreError, UnknownName, UsageError
from dpbench.options import report as options
from dpbench.records.trial import Status
from tests.analysis.builders import record, run, trial
from tests.cli.command import invoker
from tests.cli.stored import stored

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
RTX3090 = PUBLISHED / "torch_ddp_rtx3090.csv"

invoke = invoker(report)


@pytest.fixture
def sweep_folder(tmp_path: Path) -> Path:
    passes = enumerate([(100.0, 180.0), (102.0, 181.0), (99.0, 178.0)])
    records = [
        run(trial(group_size=group_size, repetition=repetition), speed)
        for repetition, speeds in passes
        for group_size, speed in zip((1, 2), speeds, strict=True)
    ]
    skipped = record(
        trial(backend="nccl"), status=Status.SKIPPED, reason="no CUDA device is visible"
    )
    return stored(tmp_path / "demo", [*records, skipped])


def test_a_csv_file_writes_nothing_unless_asked(tmp_path: Path) -> None:
    copy = tmp_path / "table.csv"
    copy.write_bytes(RTX3090.read_bytes())
    invoke(copy)
    assert list(tmp_path.iterdir()) == [copy]
    result = invoke(copy, "--output", tmp_path / "out", "--no-charts")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "index.html",
        "table.txt",
        "table.md",
        "table.csv",
        "table.json",
    }
    assert f"Report: {tmp_path / 'out' / 'index.html'}" in result.stdout


def test_a_sweep_prints_its_table_and_writes_its_report(sweep_folder: Path) -> None:
    result = invoke(sweep_folder)
    report_folder = sweep_folder / "report"
    first, *_, last = result.stdout.splitlines()
    assert first.startswith("Fastest: ddp/gloo ×2, batch 32 at 180")
    assert "nccl: skipped, no CUDA device is visible (1 row)" in result.stdout
    assert f"\nReport: {report_folder / 'index.html'}" in result.stdout
    assert f"Next: dpbench explain {sweep_folder}" in result.stdout
    assert last.endswith(" notes: --verbose)")
    assert "speedup is relative to" not in result.stdout
    assert "ddp" in (report_folder / "table.txt").read_text()
    assert 'data-kind="throughput"' in (report_folder / "index.html").read_text()
    assert not list(report_folder.rglob("*.tmp"))
    assert "speedup is relative to" in invoke(sweep_folder, "--no-charts", "--verbose").stdout


def test_without_charts_a_page_that_has_them_stays_until_something_is_measured(
    sweep_folder: Path,
) -> None:
    invoke(sweep_folder)
    page = sweep_folder / "report" / "index.html"
    for charts, measured in ((True, False), (False, True)):
        if measured:
            os.utime(sweep_folder / "trials.jsonl", (page.stat().st_mtime + 1,) * 2)
        assert f"\nReport: {page}" in invoke(sweep_folder, "--no-charts").stdout
        assert ('data-kind="throughput"' in page.read_text()) is charts


def test_an_html_file_is_the_page_alone(sweep_folder: Path, tmp_path: Path) -> None:
    before = {*tmp_path.rglob("*")}
    page = tmp_path / "page.html"
    assert f"\nReport: {page}" in invoke(sweep_folder, "--output", page, "--no-charts").stdout
    assert {*tmp_path.rglob("*")} - before == {page}
    assert page.read_text().startswith("<!doctype html>")
    with pytest.raises(StoreError, match=r"cannot write .*absent/page\.html: No such file"):
        invoke(sweep_folder, "--output", tmp_path / "absent" / "page.html", "--no-charts")


def test_no_output_is_written_over_what_is_read(sweep_folder: Path, tmp_path: Path) -> None:
    read = sweep_folder / "sweep.json"
    before = read.read_text()
    with pytest.raises(StoreError, match=r"sweep\.json holds what is read here"):
        invoke(sweep_folder, "--output", read)
    (tmp_path / "link.json").symlink_to(read)
    with pytest.raises(StoreError, match=r"link\.json holds what is read here"):
        invoke(sweep_folder, "--level", "trial", "--output", tmp_path / "link.json")
    assert read.read_text() == before
    table = tmp_path / "table.csv"
    table.write_bytes(RTX3090.read_bytes())
    with pytest.raises(StoreError, match=r"table\.csv holds what is read here"):
        invoke(table, "--output", table)


def test_a_report_is_written_over_a_report_and_over_nothing_else(
    sweep_folder: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for _ in range(2):
        invoke(sweep_folder, "--output", site, "--no-charts")
    (site / "index.html").write_text("<!doctype html><title>the user's own</title>")
    for folder in (site, tmp_path):
        with pytest.raises(StoreError, match="holds other files; expected an empty folder, or"):
            invoke(sweep_folder, "--output", folder, "--no-charts")
    assert "the user's own" in (site / "index.html").read_text()


def test_json_has_plain_rows_on_stdout_and_writes_nothing(sweep_folder: Path) -> None:
    result = invoke(sweep_folder, "--json")
    rows = json.loads(result.stdout)
    assert [row["status"] for row in rows] == ["completed", "completed", "skipped"]
    assert rows[1]["speedup"] == pytest.approx(1.7907, abs=1e-3)
    assert rows[2]["images_per_second"] is None
    assert not (sweep_folder / "report").exists()


def test_a_sweep_without_a_trial_prints_why_and_no_empty_table(sweep_folder: Path) -> None:
    (sweep_folder / "trials.jsonl").write_text("")
    first, *rest = invoke(sweep_folder, "--no-charts").stdout.splitlines()
    assert first == "No fastest configuration: no trial was recorded."
    assert len(rest) <= 4
    assert "Next:" not in "".join(rest)  # there is nothing to explain


def test_every_level_goes_into_every_format(sweep_folder: Path, tmp_path: Path) -> None:
    levels = [level for level in get_args(options.Level) if level != "collective"]
    for suffix, level in zip([*options.SUFFIXES, ".csv"], levels, strict=True):
        file = tmp_path / f"rows{suffix}"
        invoke(sweep_folder, "--level", level, "--output", file)
        assert b"gloo" in file.read_bytes()
    assert not (sweep_folder / "report").exists()


def test_rows_of_a_level_are_csv_unless_asked_otherwise(sweep_folder: Path) -> None:
    lines = invoke(sweep_folder, "--level", "rank", "--columns", "rank,device").stdout.splitlines()
    assert lines[:2] == ["rank,device", "0,cpu"]
    steps = json.loads(invoke(sweep_folder, "--level", "step", "--json").stdout)
    assert {row["window"] for row in steps} == {"timed"}
    some = invoke(sweep_folder, "--level", "step", "--json", "--group-size", "2")
    assert {row["group_size"] for row in json.loads(some.stdout)} == {2}
    assert "1 of 7 trials measured nothing and have no row" in some.stderr


def test_rows_of_a_level_are_chosen_by_name_whatever_their_labels_say(tmp_path: Path) -> None:
    specs = [trial("ddp", bucket_cap_mb=cap) for cap in (1.0, 25.0)] + [trial("torch-ddp")]
    folder = stored(tmp_path / "caps", [run(spec, 100.0) for spec in specs])
    rows = json.loads(
        invoke(folder, "--level", "trial", "--json", "--implementations", "ddp").stdout
    )
    assert [row["implementation"] for row in rows] == ["ddp", "ddp"]
    assert [row["label"] for row in rows] == [
        "ddp(1 MiB)/gloo ×1, batch 32",
        "ddp(25 MiB)/gloo ×1, batch 32",
    ]
    with pytest.raises(UsageError, match="no row of --implementations dpp; there are ddp, torch"):
        invoke(folder, "--level", "trial", "--implementations", "dpp")


def test_configurations_go_into_files_too(sweep_folder: Path, tmp_path: Path) -> None:
    invoke(sweep_folder, "--output", tmp_path / "table.csv")
    frame = pd.read_csv(tmp_path / "table.csv")
    assert list(frame.columns) == [*to_frame([]).columns]
    with pytest.raises(StoreError, match="expected exactly one column"):
        invoke(tmp_path / "table.csv")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["--format", "jsn"], UsageError, "expected 'text', 'markdown', 'csv' or 'json'"),
        (["--columns", "backend,speed"], UnknownName, "unknown column 'speed'"),
        (["--columns", "backend,backend"], UsageError, "each column once"),
        (["--json", "--format", "csv"], UsageError, "contradict"),
        (["--output", "page.pdf"], UsageError, "expected a folder, or a file that ends in"),
        (["--output", "page.html", "--format", "csv"], UsageError, "expected a file that ends in"),
        (["--json", "--output", "t.csv"], UsageError, "t.csv is for csv, but --json asks for json"),
        (["--format", "text", "--output", "t.md"], UsageError, "but --format asks for text"),
        (["--open"], UsageError, "without --output DIR"),
        (["--output", ""], UsageError, "expected the name of a file or folder"),
        (["--level", "steps"], UsageError, "got 'steps'; expected 'configuration'"),
        (["--level", "step"], UsageError, "has configurations only"),
    ],
)
def test_bad_options_are_usage_errors(
    arguments: list[str | Path], error: type[UsageError], words: str
) -> None:
    with pytest.raises(error, match=words):
        invoke(RTX3090, *arguments)


@pytest.mark.parametrize("found", [True, False])
def test_open_shows_the_page_or_says_where_it_is(
    sweep_folder: Path, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or found)
    result = invoke(sweep_folder, "--no-charts", "--open")
    address = (sweep_folder / "report" / "index.html").as_uri()
    assert opened == [address]
    assert (f"no browser was found; open {address}" in result.stderr) is not found
