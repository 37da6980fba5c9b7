"""The main table: the numbers of every other format, all columns, the usual ones shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpbench.analysis.fields.levels import COLUMNS
from dpbench.analysis.published import from_csv
from dpbench.analysis.summary import summarize
from dpbench.records import Status
from dpbench.report.page.content import Table
from dpbench.report.page.results_table import empty_columns, failures_table, results_table
from dpbench.report.tables import render
from tests.analysis.builders import record, run, trial
from tests.report.sample import sample_records

PUBLISHED = Path(__file__).parents[3] / "results" / "published"
ROWS = summarize(sample_records())
TABLE = results_table(ROWS)


def texts(table: Table, key: str) -> list[str]:
    place = [column.key for column in table.columns].index(key)
    return [row.cells[place].text for row in table.rows]


def test_all_columns_are_there_and_the_usual_ones_are_shown() -> None:
    keys = [column.key for column in TABLE.columns]
    assert sorted(keys) == sorted(COLUMNS)
    assert keys[keys.index("efficiency") + 1] == "status"
    assert [key for key in keys if key != "status"] == [*COLUMNS][:-1]
    shown = {column.key for column in TABLE.columns if column.shown}
    usual = {column.key for column in COLUMNS.values() if column.shown != "on request"}
    assert "loss_delta_per_second" in shown
    assert not shown & {"loss_delta_per_step", "goodput"}
    assert shown == usual - {"duration_seconds", "time_to_loss_seconds", "noise_scale_samples"} - {
        "final_loss_over_seeds",
        "time_to_loss_over_seeds_seconds",
        "mfu",
        "joules_per_item",
    }
    assert all(column.meaning for column in TABLE.columns)


def test_a_status_is_a_word_and_its_reason_stands_elsewhere() -> None:
    rows = summarize([record(trial(), status=Status.FAILED, reason="out of memory " * 9)])
    assert texts(results_table(rows), "status") == ["failed"]


@pytest.mark.parametrize("key", [key for key in COLUMNS if key != "status"])
def test_a_cell_says_what_the_printed_table_says(key: str) -> None:
    """As Markdown, where nothing is wrapped and a bar in a cell is escaped."""
    lines = render(ROWS, format="tsv", columns=key).text.splitlines()[1:]
    assert texts(TABLE, key) == [line.strip() for line in lines[: len(ROWS)]]


def test_sorting_goes_by_the_values_of_the_json_rows() -> None:
    rows = json.loads(render(ROWS, format="json").text)
    for place, column in enumerate(TABLE.columns):
        for shown, row in zip(TABLE.rows, rows, strict=True):
            value = row[column.key]
            if isinstance(value, bool):
                value = "yes" if value else "no"
            assert shown.cells[place].sort == value, column.key


def test_claims_stand_last() -> None:
    table = results_table(from_csv(PUBLISHED / "tabtune_tabicl.csv"))
    claimed = table.columns[-1]
    assert claimed.header.endswith("(claimed)")
    assert "nobody measured it" in claimed.meaning


def test_a_usual_column_without_any_value_is_hidden_and_named() -> None:
    table = results_table(summarize([run(trial(), 100.0)]))
    assert empty_columns(table) == ("Exposed comm",)
    assert empty_columns(results_table(())) == ()


def test_failures_have_their_whole_reason() -> None:
    reason = "rank 1 ended with signal 9: " + "out of something, " * 20
    table = failures_table(
        summarize(
            [
                record(trial(), status=Status.FAILED, reason=f"{reason}\n\x1b[31mred"),
                run(trial("torch-ddp"), 100.0),
                record(trial("torch-ddp", repetition=1), status=Status.TIMED_OUT, reason="late"),
            ]
        )
    )
    assert table is not None
    ((label, status, _, cause), (_, ended, repetitions, share)) = (r.cells for r in table.rows)
    assert (label.text, status.text) == ("ddp/gloo ×1, batch 32", "failed")
    assert cause.text == " ".join(f"{reason} [31mred".split())
    assert (ended.text, repetitions.sort) == ("timed out", 1.0)
    assert share.text == "1 of 2 repetitions timed out: late"
    assert [row.status for row in table.rows] == ["failed", "timed_out"]


def test_without_failures_there_is_no_table_of_them() -> None:
    assert failures_table(summarize([run(trial(), 100.0)])) is None
