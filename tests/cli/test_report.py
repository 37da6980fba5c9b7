"""dpbench report as people call it: what it prints where, and what it writes."""

from __future__ import annotations

import os
import shutil
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest

from dpbench.cli.app import run as run_command
from dpbench.shipped import RESULTS
from tests.analysis.builders import weak_sweep
from tests.cli.stored import stored

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
    return stored(tmp_path / "demo", [one for i in range(3) for one in weak_sweep(i)])


def test_a_table_of_others_writes_nothing_unless_asked(tmp_path: Path, report: Report) -> None:
    copy = Path(shutil.copy(RESULTS / "published" / "torch_ddp_rtx3090.csv", tmp_path))
    report(copy)
    assert list(tmp_path.iterdir()) == [copy]
    folder = tmp_path / "out-v1.2"  # which is no file's ending
    result = report(copy, "--output", folder, "--no-charts").out
    assert [p.name for p in folder.iterdir()] == ["index.html"]
    assert f"Report: {folder / 'index.html'}" in result


@pytest.mark.parametrize(
    ("name", "beginning"),
    [("page.html", "<!doctype html>"), ("table.csv", "implementation,"), ("rows.json", "[")],
)
def test_a_file_is_written_alone(
    sweep_folder: Path, tmp_path: Path, report: Report, name: str, beginning: str
) -> None:
    before, file = {*tmp_path.rglob("*")}, tmp_path / name
    report(sweep_folder, "--output", file)
    assert {*tmp_path.rglob("*")} - before == {file}
    assert file.read_text().startswith(beginning)


def test_a_report_is_written_over_a_report_and_over_nothing_else(
    sweep_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], report: Report
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for name in "ab":  # b is older than the page of a
        sweep_folder = sweep_folder.rename(tmp_path / name)
        report(sweep_folder, "--output", site, "--no-charts")
        assert f"<small>Folder: {name}</small>" in (site / "index.html").read_text()
    (site / "index.html").write_text("<!doctype html><title>the user's own</title>")
    for folder in (site, tmp_path):
        assert run_command(["report", str(sweep_folder), "--output", str(folder)]) == 2
        assert "holds other files; expected an empty folder, or" in capsys.readouterr().err
    assert "the user's own" in (site / "index.html").read_text()


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
