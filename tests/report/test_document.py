"""The report folder: which files, what is left out, and that each is whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.analysis.subject import Subject, of_folder, of_published
from dpbench.errors import StoreError
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.document import write_report
from tests.report.sample import sample_records, stored_collectives, subject
from tests.report.test_collectives import sample as sample_collectives

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
TABLES = {"table.txt", "table.md", "table.csv", "table.json"}
OF_SWEEPS = [kind for kind in CHARTS.values() if kind.source == "sweep"]


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def small() -> Subject:
    return subject(sample_records(batch_sizes=(32,), repetitions=2, timed_steps=10))


def test_the_page_has_every_chart_or_says_why_not(tmp_path: Path) -> None:
    page = write_report(tmp_path, small()).read_text()
    assert names(tmp_path) == TABLES | {"index.html"}
    for kind in OF_SWEEPS:
        has_data = kind.name != "step-shares"  # no phases in the sample
        assert has_data == (f'data-kind="{kind.name}"' in page), kind.name
    assert "not drawn: Phases of a step" in page


def test_equal_data_gives_equal_files(tmp_path: Path) -> None:
    one = replace(of_published(PUBLISHED / "tabtune_tabicl.csv"), name="published")
    for folder in ("a", "b"):
        write_report(tmp_path / folder, one)
    assert 'data-kind="efficiency"' in (tmp_path / "a" / "index.html").read_text()
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_no_rows_at_all(tmp_path: Path) -> None:
    write_report(tmp_path, subject([]))
    assert names(tmp_path) == TABLES | {"index.html"}


def test_collectives_have_their_table_and_chart(tmp_path: Path) -> None:
    full = stored_collectives(sample_collectives())
    page = write_report(tmp_path / "full", of_folder(full)).read_text()
    files = {"collectives.txt", "collectives.json", "index.html"}
    assert names(tmp_path / "full") == files
    assert 'data-kind="bandwidth"' in page
    few = stored_collectives(sample_collectives()[-1:])
    written = write_report(tmp_path / "few", of_folder(few))
    assert names(tmp_path / "few") == files
    assert "two sizes or more" in written.read_text()


def test_what_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write the report"):
        write_report(tmp_path / "file" / "out", subject([]), charts=False)
