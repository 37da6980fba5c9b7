"""The table and the JSON of collectives."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from dpbench.analysis.collectives import measured
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import Status
from dpbench.report.answer import Answer
from dpbench.report.collectives import collectives_table, stored_answer
from dpbench.report.table import Table
from tests.analysis.collective_records import (
    failed_record,
    sample_collectives,
)
from tests.report.sample import stored_collectives

MIB = 2**20


def answer(records: Sequence[CollectiveRecord]) -> Answer:
    return stored_answer(stored_collectives(records))


def row_of(table: Table, backend: str = "gloo", ranks: str = "2") -> dict[str, str]:
    """The cells of the row of 1 MiB, by the keys of their columns."""
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, line, strict=True)) for line in table.lines]
    return next(
        row
        for row in rows
        if (row["Backend"], row["Ranks"], row["nbytes"]) == (backend, ranks, "1,048,576")
    )


def test_a_row_reads_as_in_nccl_tests_with_intervals() -> None:
    table = collectives_table(measured(sample_collectives()))
    row = row_of(table)
    # 100 µs + 699 µs; 1.31 GB/s, which at 2 ranks is the busbw.
    assert (row["seconds"], row["algorithm_bytes_per_second"]) == ("799 ± 41 µs", "1.31")
    assert (row["bus_bytes_per_second"], row["largest_error"]) == ("1.31 ± 0.07", "1e-07")
    noisy = row_of(collectives_table(measured(sample_collectives(spread=0.5))))
    assert {noisy["seconds"], noisy["bus_bytes_per_second"]} == {"too noisy"}
    # Four ranks have half as much busbw again.
    assert row_of(table, ranks="4")["bus_bytes_per_second"] == "2.0 ± 0.1"


def test_what_did_not_complete_has_its_reason() -> None:
    records = sample_collectives()
    records[0] = failed_record(records[0].collective, Status.FAILED, "rank 1 died")
    text = " ".join(answer(records).text.split())
    assert "nccl ×2: skipped (1 repetition): nccl needs a CUDA device a rank" in text
    assert ": failed (1 repetition): rank 1 died" in text
    assert row_of(collectives_table(measured(records)))["n"] == "2"
    assert "float32, 1 thread per rank, cpu" in text


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.3, 0.9])
def test_the_largest_error_stays_beside_the_time_in_eighty_columns(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = answer(sample_collectives(spread=spread)).text.splitlines()
    assert {"Time", "Error", "busbw"} <= {*lines[0].split()}
    assert max(map(len, lines)) <= 80


def test_json_holds_every_estimate_in_base_units() -> None:
    data = json.loads(json.dumps(answer(sample_collectives()).data, allow_nan=False))
    gloo = data[0]
    size = next(size for size in gloo["sizes"] if size["nbytes"] == MIB)
    assert (gloo["backend"], gloo["group_size"], gloo["repetitions"]) == ("gloo", 2, 3)
    assert size["seconds"]["value"] == pytest.approx(799e-6, rel=1e-3)
    assert size["seconds"]["low"] < 799e-6 < size["seconds"]["high"]
    assert size["bus_bytes_per_second"]["unit"] == "B/s"
    assert data[-1]["failures"] == [
        {"status": "skipped", "reason": "nccl needs a CUDA device a rank; none is visible"}
    ]
