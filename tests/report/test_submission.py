"""Rows for the published tables: they read back as what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.analysis.published import from_csv
from dpbench.analysis.subject import of_folder
from dpbench.errors import UsageError
from dpbench.report.exports import submission
from dpbench.run.results import read_subject
from dpbench.shipped import RESULTS
from dpbench.store import load

EXAMPLE = RESULTS / "examples" / "two-cores"


def test_a_submitted_row_reads_back_with_its_speed_and_environment(tmp_path: Path) -> None:
    subject = of_folder(load(EXAMPLE))
    table = tmp_path / "mine.csv"
    table.write_text(submission(subject))
    read = {(one.series, one.group_size, one.batch_size): one for one in from_csv(table)}
    measured = [row for row in subject.rows if row.throughput is not None]
    assert len(read) == len(measured)
    for row in measured:
        series = row.series if row.implementation == "single" else f"mlp {row.series}"
        found = read[series, row.group_size, row.batch_size]
        assert found.throughput is not None
        assert found.efficiency is not None
        assert row.throughput is not None
        assert row.efficiency is not None
        assert found.throughput.value == pytest.approx(row.throughput.value, rel=1e-5)
        assert found.efficiency.value == pytest.approx(row.efficiency.value, rel=1e-5)
        assert "2 cores" in (found.source or "")


def test_a_published_table_is_no_submission() -> None:
    subject = read_subject(RESULTS / "published" / "weak_scaling.csv")
    with pytest.raises(UsageError, match="--format submission needs a sweep's results folder"):
        submission(subject)
