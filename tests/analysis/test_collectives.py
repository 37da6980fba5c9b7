"""From ranks, samples and repetitions to one number with an interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.collectives import bus_factor, collective_rows
from dpbench.records.collectives import SizeTiming
from dpbench.records.trial import Status
from tests.analysis.collective_records import collective_record, collective_spec, failed_record

SPEC = collective_spec(sizes_bytes=(4, 10**6), group_size=4)


def test_a_sample_takes_as_long_as_its_slowest_rank() -> None:
    record = collective_record(SPEC)
    slow = SizeTiming(nbytes=4, seconds=(0.5e-3, 5e-3, 3e-3), largest_error=0.0)
    first = (slow, record.ranks[0][1])
    small, large = collective_rows([replace(record, ranks=(first, *record.ranks[1:]))])
    # The slower of 1 ms and 0.5, 5, 3 ms: 1, 5, 3, of which the median is 3. 1 ms of 1 MB: 1 GB/s,
    # busbw 1.5 of that.
    found = (small.seconds, large.algorithm_bytes_per_second, large.bus_bytes_per_second)
    assert [one and one.value for one in found] == pytest.approx([3e-3, 1e9, 1.5e9])
    assert small.largest_error == 1e-7  # another rank's


def test_failures_are_kept_with_their_reasons() -> None:
    failed = failed_record(SPEC, Status.TIMED_OUT, "after 60 s")
    completed = collective_record(replace(SPEC, repetition=1))
    for records, sizes in (([failed, completed], SPEC.sizes_bytes), ([failed], (None,))):
        rows = collective_rows(records)
        assert tuple(row.nbytes for row in rows) == sizes
        for row in rows:
            assert row.repetitions == len(records) - 1
            assert (row.status, row.reason) == (Status.TIMED_OUT, "after 60 s")


@pytest.mark.parametrize(
    ("collective", "group_size", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("broadcast", 8, 1.0),
    ],
)
def test_the_factor_is_that_of_nccl_tests(collective: str, group_size: int, factor: float) -> None:
    assert bus_factor(collective, group_size) == factor
