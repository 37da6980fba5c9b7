"""dpbench report as people call it: what it prints where, and what it writes."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from dpbench.analysis.frames import to_frame
from dpbench.cli.app import run as run_command
from dpbench.records.trial import Status
from tests.analysis.builders import record, run, trial
from tests.cli.stored import PUBLISHED, stored

Report = Callable[..., "pytest.CaptureResult[str]"]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    """Runs the command, and returns what it prints."""

    def invoke(*words: str | Path) -> pytest.CaptureResult[str]:
        capsys.readouterr()
        assert run_command(["report", *map(str, words)]) == 0
        return capsys.readouterr()

    return invoke


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


def test_a_csv_file_writes_nothing_unless_asked(tmp_path: Path, report: Report) -> None:
    copy = tmp_path / "table.csv"
    copy.write_bytes(PUBLISHED.read_bytes())
    report(copy)
    assert list(tmp_path.iterdir()) == [copy]
    result = report(copy, "--output", tmp_path / "out", "--no-charts").out
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["index.html"]
    assert f"Report: {tmp_path / 'out' / 'index.html'}" in result


def test_a_sweep_prints_its_table_and_writes_its_report(sweep_folder: Path, report: Report) -> None:
    result = report(sweep_folder).out
    report_folder = sweep_folder / "report"
    first, *_, last = result.splitlines()
    assert first.startswith("Fastest: ddp/gloo ×2, batch 32 at 180")
    assert "nccl: skipped, no CUDA device is visible (1 row)" in result
    assert f"\nReport: {report_folder / 'index.html'}" in result
    assert f"Next: dpbench explain {sweep_folder}" in result
    assert last.endswith(" notes: --verbose)")
    assert "speedup is relative to" not in result
    assert 'data-kind="throughput"' in (report_folder / "index.html").read_text()
    assert not list(report_folder.rglob("*.tmp"))
    assert "speedup is relative to" in report(sweep_folder, "--no-charts", "--verbose").out


def test_an_html_file_is_the_page_alone(sweep_folder: Path, tmp_path: Path, report: Report) -> None:
    before = {*tmp_path.rglob("*")}
    page = tmp_path / "page.html"
    assert f"\nReport: {page}" in report(sweep_folder, "--output", page, "--no-charts").out
    assert {*tmp_path.rglob("*")} - before == {page}
    assert page.read_text().startswith("<!doctype html>")


def test_a_report_is_written_over_a_report_and_over_nothing_else(
    sweep_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], report: Report
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for _ in range(2):
        report(sweep_folder, "--output", site, "--no-charts")
    (site / "index.html").write_text("<!doctype html><title>the user's own</title>")
    for folder in (site, tmp_path):
        assert run_command(["report", str(sweep_folder), "--output", str(folder)]) == 2
        assert "holds other files; expected an empty folder, or" in capsys.readouterr().err
    assert "the user's own" in (site / "index.html").read_text()


def test_a_sweep_without_a_trial_prints_why_and_no_empty_table(
    sweep_folder: Path, report: Report
) -> None:
    (sweep_folder / "trials.jsonl").write_text("")
    first, *rest = report(sweep_folder, "--no-charts").out.splitlines()
    assert first == "No fastest configuration: no trial was recorded."
    assert len(rest) <= 4
    assert "Next:" not in "".join(rest)  # there is nothing to explain


def test_configurations_go_into_files_too(
    sweep_folder: Path, tmp_path: Path, report: Report
) -> None:
    report(sweep_folder, "--output", tmp_path / "table.csv")
    frame = pd.read_csv(tmp_path / "table.csv")
    assert list(frame.columns) == [*to_frame([]).columns]


@pytest.mark.parametrize("found", [True, False])
def test_open_shows_the_page_or_says_where_it_is(
    sweep_folder: Path, monkeypatch: pytest.MonkeyPatch, found: bool, report: Report
) -> None:
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or found)
    result = report(sweep_folder, "--no-charts", "--open").err
    address = (sweep_folder / "report" / "index.html").as_uri()
    assert opened == [address]
    assert (f"no browser was found; open {address}" in result) is not found


@pytest.mark.parametrize("command", ["report {} --no-charts", "explain {}"])
def test_a_last_line_that_is_cut_off_is_a_warning(
    sweep_folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = sweep_folder / "trials.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    run_command(command.format(sweep_folder).split())
    warning = "trials.jsonl: the last line is cut off"
    assert warning in " ".join("".join(capsys.readouterr()).split())


def test_without_charts_a_page_that_has_them_stays_until_something_is_measured(
    sweep_folder: Path,
    report: Report,
) -> None:
    report(sweep_folder)
    page = sweep_folder / "report" / "index.html"
    for charts, measured in ((True, False), (False, True)):
        if measured:
            os.utime(sweep_folder / "trials.jsonl", (page.stat().st_mtime + 1,) * 2)
        assert f"\nReport: {page}" in report(sweep_folder, "--no-charts").out
        assert ('data-kind="throughput"' in page.read_text()) is charts
