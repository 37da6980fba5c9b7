"""Explanations as text and as JSON: every number with its interval, every column with a reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from dpbench.analysis.diagnosis.advice import advise
from dpbench.analysis.diagnosis.explanation import explain
from dpbench.analysis.summary import summarize
from dpbench.records.trial import Phases, ReplicaPhases, Status, TrialRecord
from dpbench.report.explanation import answer
from tests.analysis.builders import record, steps_of, trial, weak_sweep


def sweep(passes: int = 3) -> list[TrialRecord]:
    return [record for i in range(passes) for record in weak_sweep(i, slower=1 + 0.01 * i)]


def text_of(records: Sequence[TrialRecord]) -> str:
    rows = summarize(records)
    explanations = explain(records, rows)
    return answer(explanations, advise(explanations), rows=rows, notes=["a note"]).text


def line_of(text: str, start: str, table: int = 0) -> str:
    return [line for line in text.splitlines() if line.startswith(start)][table]


def test_the_row_holds_efficiencies_and_factors() -> None:
    cells = line_of(text_of(sweep()), "ddp/gloo ×2").split("  ")
    assert [cell.strip() for cell in cells if cell.strip()] == [
        "ddp/gloo ×2,",
        "55.0 ± 1.2 %",
        "50.0 ± 0 %",
        "0.833 ± 0",
        "0.923 ± 0",
        "0.929 ± 0",
        "1.000 ± 0",
        "0.700 ± 0",
    ]


def test_the_second_table_holds_the_step() -> None:
    line = line_of(text_of(sweep()), "ddp/gloo ×2", table=1)
    assert "20.2 ± 0.5 ms" in line
    assert "1 (in 3 of 3)" in line


def test_columns_that_say_nothing_are_left_out() -> None:
    text = text_of(sweep())
    assert "Granularity" not in text
    assert "Reduced" not in text


def test_merged_factors_stand_once() -> None:
    dp = steps_of("dp", [0.02], [0.015], group_size=2)
    line = line_of(text_of([*weak_sweep(), dp]), "dp ×2")
    assert "0.800  in wrapper" in line


def test_every_large_loss_has_one_line() -> None:
    text = " ".join(text_of(sweep()).split())
    assert (
        "· 30.0 ± 0 % of the step is exposed communication on gloo: try shm (same host), or "
        "--accumulate 4 (ddp/gloo ×2, batch 32)" in text
    )
    assert "· 10–15 % of the step is contention" in text
    assert text.count("of the step is") == 4


def test_equal_advice_names_the_first_rows_and_counts_the_rest() -> None:
    records = [
        steps_of(name, times, without, repetition=repetition, batch_size=batch_size)
        for repetition in range(3)
        for batch_size in range(1, 11)
        for name, times, without in (
            ("single", [0.01], None),
            ("independent", [0.01, 0.01], None),
            ("ddp", [0.02 + 1e-5 * batch_size] * 2, [0.01, 0.01]),
        )
    ]
    text = " ".join(text_of(records).split())
    assert "50 % of the step is exposed communication on gloo" in text
    assert "batch 8; and 2 more)" in text


def test_a_single_repetition_says_that_nothing_is_blamed() -> None:
    text = " ".join(text_of(weak_sweep()).split())
    assert "no loss is both large (5 % of a step) and beyond the noise" in text
    assert "single repetition (n = 1)" in text
    assert "measure with --repetitions 4" in text


def test_rows_without_a_speed_are_listed_with_their_reason() -> None:
    skipped = record(trial(backend="nccl"), status=Status.SKIPPED, reason="no CUDA device")
    text = text_of([*sweep(), skipped])
    assert "skipped, ddp/nccl ×1, batch 32: no CUDA device" in text
    assert "· a note" in text


def test_phases_have_a_table_of_their_own_where_they_were_measured() -> None:
    def instrumented(backward_seconds: float) -> Phases:
        return Phases(
            data_seconds=(0.001,),
            forward_seconds=(0.005,),
            backward_seconds=(backward_seconds,),
            optimizer_seconds=(0.002,),
        )

    *others, ddp = weak_sweep()
    ranks = [
        replace(one, phases=instrumented(0.015), phases_without_sync=instrumented(0.011))
        for one in ddp.ranks
    ]
    text = text_of([*others, replace(ddp, ranks=tuple(ranks))])
    cells = [cell.strip() for cell in line_of(text, "ddp/gloo ×2", table=2).split("  ")]
    assert [cell for cell in cells[1:] if cell] == [
        "1 ms",
        "5 ms",
        "11 ms",
        "4 ms",
        "2 ms",
        "23 ms",
        "20 ms",
    ]
    assert "Scatter" not in text
    parts = ReplicaPhases(
        scatter_seconds=(0.001,),
        replicate_seconds=(0.0005,),
        compute_seconds=(0.016,),
        gather_seconds=(0.0015,),
        reduce_seconds=(0.0031,),
    )
    ranks = [replace(one, replica_phases=parts) for one in ranks]
    text = text_of([*others, replace(ddp, ranks=tuple(ranks))])
    for name, written in (("Scatter", "1 ms"), ("Compute", "16 ms"), ("Reduce", "3.1 ms")):
        assert name in text
        assert written in line_of(text, "ddp/gloo ×2", table=2)
    assert "phases are means over ranks" in text
    assert "phases are" not in text_of(weak_sweep())


def test_json_holds_every_number_with_its_interval() -> None:
    records = sweep()
    explanations = explain(records, summarize(records))
    content = json.loads(answer(explanations, advise(explanations), notes=["a note"]).json)
    assert content["notes"] == ["a note"]
    two = content["configurations"][1]
    assert (two["implementation"], two["group_size"], two["repetitions"]) == ("ddp", 2, 3)
    assert [factor["parts"] for factor in two["factors"]][-2:] == [
        ["communication"],
        ["warm-up"],
    ]
    assert two["factors"][-2]["sample_size"] == 3
    assert two["advice"][0]["kind"] == "communication"
    assert two["slowest_rank"] == {"rank": 1, "slowest_in": 3}
    product = 1.0
    for factor in two["factors"]:
        product *= factor["value"]
    assert abs(product - two["absolute_efficiency"]["value"]) < 1e-12
