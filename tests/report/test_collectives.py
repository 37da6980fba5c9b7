"""The table of collectives and its notes."""

from __future__ import annotations

import pytest

from dpbench.analysis.collectives import collective_rows
from dpbench.report.collectives import collectives_table, stored_answer
from dpbench.report.table import Table
from tests.analysis.collective_records import sample_collectives
from tests.report.sample import stored_collectives


def row_of(table: Table, ranks: str = "2") -> dict[str, str]:
    """The cells of gloo's row of 1 MiB, by the keys of their columns."""
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, line, strict=True)) for line in table.lines]
    wanted = ("gloo", ranks, "1,048,576")
    return next(r for r in rows if (r["backend"], r["group_size"], r["nbytes"]) == wanted)


def test_a_row_reads_as_in_nccl_tests_with_intervals() -> None:
    table = collectives_table(collective_rows(sample_collectives()))
    row = row_of(table)
    # 100 µs + 699 µs; 1.31 GB/s, which at 2 ranks is the busbw.
    assert (row["seconds"], row["algorithm_bytes_per_second"]) == ("799 ± 41 µs", "1.31")
    assert (row["bus_bytes_per_second"], row["largest_error"]) == ("1.31 ± 0.07", "1e-07")
    assert row["repetitions"] == "3"
    noisy = row_of(collectives_table(collective_rows(sample_collectives(spread=0.5))))
    assert {noisy["seconds"], noisy["bus_bytes_per_second"]} == {"too noisy"}
    # Four ranks have half as much busbw again.
    assert row_of(table, ranks="4")["bus_bytes_per_second"] == "2.0 ± 0.1"


def test_what_did_not_complete_has_its_reason() -> None:
    text = " ".join(stored_answer(stored_collectives(sample_collectives())).text.split())
    assert "all_reduce on nccl ×2: failed (1 repetition): rank 1 died" in text
    assert "float32, 1 thread per rank, cpu" in text


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.3, 0.9])
def test_the_largest_error_stays_beside_the_time_in_eighty_columns(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stored = stored_collectives(sample_collectives(spread=spread))
    lines = stored_answer(stored).text.splitlines()
    assert {"Time", "Error", "busbw"} <= {*lines[0].split()}
    assert max(map(len, lines)) <= 80
