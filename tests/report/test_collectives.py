"""The table and the JSON of collectives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import Status
from dpbench.report.collectives import answer
from tests.analysis.communication.collective_records import (
    collective_record,
    collective_spec,
    failed_record,
)

MIB = 2**20


def sample(
    *, spread: float = 0.02, copy_bytes_per_second: float | None = 10e9
) -> list[CollectiveRecord]:
    """Three repetitions on gloo and shm at 2 and 4 ranks; nccl is skipped."""
    records = [
        collective_record(
            collective_spec(
                backend=backend,
                group_size=group_size,
                repetition=repetition,
            ),
            lambda size, t=latency * factor, b=bandwidth / factor: t + size / b,
            copy_bytes_per_second=copy_bytes_per_second,
        )
        for repetition, factor in enumerate((1 - spread, 1.0, 1 + spread))
        for backend, latency, bandwidth in (("gloo", 100e-6, 1.5e9), ("shm", 10e-6, 8e9))
        for group_size in (2, 4)
    ]
    reason = "nccl needs a CUDA device a rank; none is visible"
    return [*records, failed_record(collective_spec(backend="nccl"), Status.SKIPPED, reason)]


def test_a_row_reads_as_in_nccl_tests_with_intervals() -> None:
    text = answer(sample()).text
    assert "all_reduce on gloo ×2, float32, 1 thread a rank, cpu" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("1,048,576 "))
    # 100 µs + 699 µs; 1.31 GB/s, which at 2 ranks is the busbw, and 13 % of 10 GB/s.
    assert row.split() == [
        "1,048,576",
        "262,144",
        *("799", "±", "41"),
        "µs",
        "1.31",
        *("1.31", "±", "0.07"),
        *("13.1", "±", "0.7"),
        "3",
    ]


def test_four_ranks_have_half_as_much_busbw_again() -> None:
    block = answer(sample()).text.split("all_reduce on gloo ×4")[1]
    row = next(line for line in block.splitlines() if line.strip().startswith("1,048,576 "))
    assert row.split()[6:10] == ["1.31", "2.0", "±", "0.1"]


def test_what_did_not_complete_has_its_reason() -> None:
    block = answer(sample()).text.split("all_reduce on nccl ×2")[1]
    assert "· skipped: nccl needs a CUDA device a rank; none is visible" in block


def test_some_repetitions_that_failed_are_counted_beside_the_numbers() -> None:
    records = sample()
    records[0] = failed_record(records[0].collective, Status.FAILED, "rank 1 died")
    text = answer(records).text
    assert "· failed (1 repetition): rank 1 died" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("1,048,576 "))
    assert row.split()[-1] == "2"


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.3, 0.9])
def test_it_fits_a_hundred_columns_however_noisy(spread: float) -> None:
    assert max(map(len, answer(sample(spread=spread)).text.splitlines())) <= 100


def test_one_repetition_says_so_and_without_copies_there_is_no_share() -> None:
    text = answer(sample(copy_bytes_per_second=None)[:1]).text
    row = next(line for line in text.splitlines() if line.strip().startswith("1,048,576 "))
    assert row.split()[-2:] == ["–", "1"]
    assert "times without an interval are single values (n = 1)" in text


def test_json_holds_every_estimate_in_base_units() -> None:
    data = json.loads(json.dumps(answer(sample()).data, allow_nan=False))
    gloo = data[0]
    size = next(size for size in gloo["sizes"] if size["nbytes"] == MIB)
    assert (gloo["backend"], gloo["group_size"], gloo["repetitions"]) == ("gloo", 2, 3)
    assert size["seconds"]["value"] == pytest.approx(799e-6, rel=1e-3)
    assert size["seconds"]["low"] < 799e-6 < size["seconds"]["high"]
    assert size["bus_bandwidth"]["unit"] == "B/s"
    assert data[-1]["failures"] == [
        {"status": "skipped", "reason": "nccl needs a CUDA device a rank; none is visible"}
    ]


def test_the_largest_error_of_all_ranks_is_beside_the_time_where_it_was_measured() -> None:
    old = sample()
    assert "Error" not in answer(old).text
    errors = iter((1e-8, 6e-8, 0.0, 3e-8) * 1000)
    text = answer([with_errors(record, errors) for record in old]).text
    row = next(line for line in text.splitlines() if line.strip().startswith("1,048,576 "))
    assert row.split()[6] == "6e-08"
    assert "error: the largest of any rank on values that have to be rounded" in text


def with_errors(record: CollectiveRecord, errors: Iterator[float]) -> CollectiveRecord:
    ranks = tuple(
        replace(
            rank,
            timings=tuple(replace(timing, largest_error=next(errors)) for timing in rank.timings),
        )
        for rank in record.ranks
    )
    return replace(record, ranks=ranks)


def test_a_measurement_that_was_tried_again_says_why() -> None:
    records = [replace(record, tried_again_after="rank 1 was killed") for record in sample()]
    assert "tried again after rank 1 was killed" in answer(records).text
