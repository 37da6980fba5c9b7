"""Explanations as text and as JSON: every number with its interval, every loss with a remedy."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dpbench.analysis.diagnosis.causes import explain_rows
from dpbench.analysis.diagnosis.explanation import fastest
from dpbench.analysis.rows import summarize
from dpbench.records.trial import Status, TrialRecord
from dpbench.report.answer import Answer
from dpbench.report.explanation import explanation_answer
from tests.analysis.builders import record, trial, weak_sweep


def sweep(passes: int = 3) -> list[TrialRecord]:
    return [record for i in range(passes) for record in weak_sweep(i, slower=1 + 0.01 * i)]


def answer_on(records: Sequence[TrialRecord], *, every: bool = True) -> Answer:
    rows = summarize(records)
    found = explain_rows(rows)
    shown = found if every else fastest(found)
    return explanation_answer(found, shown=shown, rows=rows, notes=["a note"])


def text_of(records: Sequence[TrialRecord], *, every: bool = True) -> str:
    return " ".join(answer_on(records, every=every).text.split())


def test_every_large_loss_has_one_line() -> None:
    text = text_of(sweep())
    assert (
        "· 30.0 ± 0 % of the step is exposed communication on gloo: try shm (same host), or "
        "--accumulate 4 (ddp/gloo ×2, batch 32)" in text
    )
    assert "· 10–15 % of the step is contention" in text
    assert text.count("of the step is") == 4


def test_rows_without_a_speed_are_listed_with_their_reason() -> None:
    skipped = record(trial(backend="nccl"), status=Status.SKIPPED, reason="no CUDA device")
    text = text_of([*sweep(), skipped])
    assert "nccl: skipped, no CUDA device (1 row)" in text
    assert "· a note" in text


def test_json_holds_every_number_with_its_interval() -> None:
    content = json.loads(answer_on(sweep(), every=False).json)
    assert content["notes"] == ["a note"]
    two = content["configurations"][1]
    assert (two["implementation"], two["group_size"], two["repetitions"]) == ("ddp", 2, 3)
    assert [factor["parts"] for factor in two["factors"]][-1:] == [["communication"]]
    assert two["factors"][-2]["sample_size"] == 3
    assert two["advice"][0]["kind"] == "communication"
    assert (two["slowest_rank"]["rank"], two["slowest_rank"]["slowest_in"]) == (1, 3)
    product = 1.0
    for factor in two["factors"]:
        product *= factor["value"]
    assert abs(product - two["efficiency"]["value"]) < 1e-12
