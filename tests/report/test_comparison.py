"""What compare says of rows that cannot be compared; tests/golden has the others."""

from __future__ import annotations

import json
from dataclasses import replace

from dpbench.analysis.comparisons.comparison import compare_sides
from dpbench.records.trial import Status
from dpbench.report.answer import Answer
from dpbench.report.comparison import comparison_answer
from dpbench.report.table import Table
from tests.analysis.builders import QUIET, record, runs, side, trial

WITHOUT = "no completed repetition of the candidate"


def answer_to(**changes: object) -> Answer:
    """The answer on a row that is compared, one that failed, and one on each side without a
    partner."""
    before = side(
        "results/before",
        *(runs(one, QUIET) for one in (trial(), trial("ddp", "shm"), trial("dp", "threads"))),
    )
    failed = record(trial("ddp", "shm"), status=Status.FAILED)
    after = side("results/after", runs(trial(), QUIET), runs(trial("torch-ddp"), QUIET), [failed])
    found = compare_sides(before, after, {"images_per_second": 0.03})
    return comparison_answer(replace(found, **changes), within=0.03)


def test_a_markdown_comparison_is_a_table_of_github_and_nothing_beside_it_is_markup() -> None:
    found = answer_to(notes=["only in <img src=x>: `a` | @b"]).markdown
    assert "\n| Configuration " in found
    assert "\n|:------" in found
    assert "\\<img src=x\\>" in found
    assert "@b" not in found


def test_a_row_that_failed_says_so_and_what_has_no_partner_is_named_below() -> None:
    found = answer_to()
    table = found.paragraphs[1]
    assert isinstance(table, Table)
    (failed,) = (line for line in table.lines if "shm" in line[0])
    assert failed[2:] == (*("–", "–", "–", "5, 0"), f"inconclusive: {WITHOUT}")
    said = " ".join(found.text.split())
    assert "B is the same within 3 % in 1 of 2 rows; 1 is inconclusive." in said
    assert "only in results/before, not compared: dp ×1, batch 32" in said


def test_json_has_the_rows_and_what_has_no_partner() -> None:
    content = json.loads(answer_to().json)
    assert (content["baseline"], content["candidate"]) == ("results/before", "results/after")
    assert content["only_in_baseline"] == ["dp ×1, batch 32"]
    assert content["only_in_candidate"] == ["torch-ddp/gloo ×1, batch 32"]
    assert len(content["notes"]) == 2
    same, failed = content["rows"]
    assert (same["configuration"], same["outcome"]) == ("ddp/gloo ×1, batch 32", "same")
    assert (failed["candidate"], failed["reason"]) == (None, WITHOUT)
