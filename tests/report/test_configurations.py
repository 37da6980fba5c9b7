"""The table of configurations: its columns, how it fits a terminal, and its notes."""

from __future__ import annotations

import csv
import io
import json
import math
import re

import pandas as pd
import pytest

from dpbench.analysis.analyze import Analysis
from dpbench.analysis.frames import row_frame
from dpbench.analysis.rows import summarize
from dpbench.records.trial import HostLoad, Status
from dpbench.report.configurations import frame_text, rows_text
from tests.analysis.builders import BACKENDS, run, runs, trial, varied
from tests.report.sample import sample_records

REQUIRED = """implementation backend group_size batch_size global_batch_size images_per_second
images_per_second_low images_per_second_high speedup speedup_relative efficiency
exposed_communication_seconds loss_delta_per_step loss_delta_per_second final_loss
peak_memory_bytes step_seconds_p50 step_seconds_p95 repetitions timed_steps status reason
verified"""


def test_csv_has_the_same_keys() -> None:
    """As JSON, which has all that a row may have."""
    rows = json.loads(rows_text(summarize(sample_records()), format="json"))
    lines = csv.DictReader(io.StringIO(rows_text(summarize(sample_records()), format="csv")))
    assert not set(REQUIRED.split()) - {*row_frame([]).columns}
    assert all(list(row) == [*row_frame([]).columns] for row in (*rows, *lines))
    assert {row["item"] for row in rows if row["images_per_second"]} == {"images"}
    failed = next(row for row in rows if row["status"] == "failed")
    assert failed["reason"].startswith("1 of 3 repetitions failed: rank 1")
    assert failed["repetitions"] == 2


def test_speeds_of_several_items_have_their_units() -> None:
    """As the header cannot say which row counts tokens."""
    tokens = run(trial(), 100.0, item="tokens")
    rows = summarize([tokens, run(trial(group_size=2), 200.0, item="images")])
    text = rows_text(rows)
    assert all(words in text for words in ("100 tokens/s", "200 images/s", "Items/s"))
    assert "Tokens/s" in rows_text(rows[:1])


@pytest.mark.parametrize("common", ["none", "backend", "group_size", "batch_size"])
def test_a_narrow_terminal_gets_fewer_columns_and_the_same_cells(common: str) -> None:
    rows = [row for row in summarize(sample_records()) if row.status is Status.COMPLETED]
    if common != "none":
        rows = [row for row in rows if getattr(row, common) == getattr(rows[-1], common)]
    widest = body(rows_text(rows, width=1000))
    cells = {cell.strip() for line in widest for cell in line.split("  ")}
    left_out = []
    for width in range(60, 130, 5):
        text, names_absent, _ = rows_text(rows, width=width).partition("\nNot shown at ")
        lines = body(text)
        assert max(map(len, lines)) <= width
        assert {cell.strip() for line in lines for cell in line.split("  ")} <= cells
        assert len({line.split("  ")[0] for line in lines}) == len({row.series for row in rows})
        left_out.append(bool(names_absent))
    assert left_out == sorted(left_out, reverse=True)
    assert (left_out[0], left_out[-1]) == (True, False)


def body(text: str) -> list[str]:
    """The lines with numbers, below the header and above the notes."""
    lines = re.split(r"\n(?:\* |≤: |± |All )", text.split("-\n", 1)[1])[0].splitlines()
    return [line for line in lines if not line.startswith("-")]


def test_eighty_columns_hold_the_four_quantities_and_a_rule_between_batch_sizes() -> None:
    """With every column that identifies a row, and speeds of four digits that vary by a tenth."""
    losses = [2.0 - 0.01 * step + 0.02 * math.sin(step * step) for step in range(20)]
    records = [
        run(
            trial(name, BACKENDS.get(name, "gloo"), size, batch, steps=20),
            4000.0 * size * (1 + 0.1 * math.sin(k + size)),
            losses=losses,
            repetition=k,
        )
        for name, size in (("single", 1), ("torch-ddp", 1), ("torch-ddp", 16))
        for batch in (64, 128)
        for k in range(4)
    ]
    header, rule, *lines = rows_text(summarize(records), width=80).splitlines()
    assert header.split()[3:7] == ["Images/s", "Speedup", "Eff.", "Loss/s"]
    assert all("±" in line.split("  ")[-1] for line in lines[:3])
    assert [place for place, line in enumerate(lines) if line == rule] == [3]


def test_a_fall_of_the_loss_that_is_too_noisy_has_a_remedy() -> None:
    """Without noise, and with noise that is larger than the fall over twenty steps."""
    for noise, is_told in ((0.0, False), (1.0, True)):
        losses = [3 - 0.01 * step + noise * math.sin(step * step) for step in range(20)]
        rows = summarize(runs(trial(steps=20), (100.0, 101.0), losses=losses))
        text = rows_text(rows, columns="loss_slope_per_second")
        assert ("Loss/s too noisy: measure more steps or repetitions" in text) is is_told


def test_load_on_the_reference_of_speedups_is_told_beside_its_mark() -> None:
    specs = {"single": trial("single", "none"), "ddp": trial(group_size=2)}
    busy = HostLoad(cores=2, during=2.0, stolen=0.0)
    for loaded in specs:
        loads = {loaded: busy}
        records = [run(spec, 100.0, host_load=loads.get(name)) for name, spec in specs.items()]
        text = " ".join(rows_text(summarize(records)).split())
        doubtful = "its trials, so speedups over single ×1, batch 32 are doubtful, too"
        assert "† other programs used the cores during some of its trials" in text
        assert (doubtful in text) is (loaded == "single")


@pytest.mark.parametrize(("speed", "is_above"), [(200.0, False), (210.0, True)])
def test_an_efficiency_above_one_has_a_remark(speed: float, is_above: bool) -> None:
    rows = summarize([run(trial("single", "none"), 100.0), run(trial(group_size=2), speed)])
    assert ("Eff. above 100 %: noise, or one" in rows_text(rows)) is is_above


def test_local_sgd_is_marked_as_another_optimization() -> None:
    words = (
        "×1, batch 32: averages parameters every 4 steps, gradients never: a different algorithm"
    )
    plain, rare = (run(trial("local-sgd", "gloo", sync_every=n), 100.0) for n in (1, 4))
    for records in ([plain], [plain, rare]):
        found = Analysis(name="", rows=summarize(records)).notes
        assert (words in " ".join(found)) is (rare in records)


def test_a_scaled_learning_rate_stands_in_the_row_with_its_rule() -> None:
    """0.01 for one replica's batch: 0.0141 by the root, and 0.02 in proportion, for two."""
    assert "0.01" in rows_text(summarize([run(trial(group_size=2), 100.0)]), columns="lr")
    for rule, words in (("sqrt", "0.0141421 (sqrt)"), ("linear", "0.02 (linear)")):
        specs = [varied(trial(group_size=n), lr_scaling=rule) for n in (1, 2)]
        rows = summarize([run(spec, 100.0) for spec in specs])
        assert words in rows_text(rows, columns="lr")
        assert row_frame(rows)["lr_scaling"].tolist() == [rule, rule]


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+2", "-2+3", "@SUM(A1)", "\t=1"])
def test_no_text_in_a_csv_file_is_a_formula(text: str) -> None:
    frame = pd.DataFrame({"a": [text, "plain", None], "b": pd.Categorical([text, "c", None])})
    frame["x"] = [-1.5, math.inf, math.nan]
    rows = list(csv.reader(io.StringIO(frame_text(frame, "csv"))))
    assert rows[1:] == [[f"'{text}"] * 2 + ["-1.5"], ["plain", "c", "inf"], ["", "", ""]]


def test_json_has_null_for_missing_values_and_text_for_infinity() -> None:
    frame = pd.DataFrame(
        {
            "n": pd.array([1, None], dtype="Int64"),
            "x": [0.1, math.inf],
            "y": [math.nan, -math.inf],
            "ok": pd.array([True, None], dtype="boolean"),
            "word": pd.array(["gloo/é", None], dtype="string"),
        }
    )
    assert json.loads(frame_text(frame, "json")) == [
        {"n": 1, "x": 0.1, "y": None, "ok": True, "word": "gloo/é"},
        {"n": None, "x": "inf", "y": "-inf", "ok": None, "word": None},
    ]
    assert "gloo/é" in frame_text(frame, "json")
    assert frame_text(frame[:0], "json") == "[]\n"
