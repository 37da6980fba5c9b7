"""From ranks, samples and repetitions to one number with an interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.collectives import bus_factor, measured
from dpbench.records.collectives import SizeTiming
from dpbench.records.trial import Status
from tests.analysis.collective_records import (
    affine,
    collective_record,
    collective_spec,
    failed_record,
)

MIB = 2**20
SPEC = collective_spec(sizes_bytes=(4, MIB))


def test_a_sample_takes_as_long_as_its_slowest_rank() -> None:
    record = collective_record(SPEC, affine(1e-3, 1e9))
    first, second = record.ranks
    slow = SizeTiming(nbytes=4, calls_per_sample=1, seconds=(0.5e-3, 5e-3, 3e-3), largest_error=0.0)
    second = replace(second, timings=(slow, second.timings[1]))
    (found,) = measured([replace(record, ranks=(first, second))])
    # The slower of 1 ms and 0.5, 5, 3 ms: 1, 5, 3, of which the median is 3.
    assert found.sizes[0].seconds.value == pytest.approx(3e-3)
    assert found.sizes[0].largest_error == 1e-7  # the other rank's


def test_bandwidths() -> None:
    spec = collective_spec(sizes_bytes=(4, 10**6), group_size=4)
    # 1 ms of 1 MB: 1 GB/s, busbw 1.5 of that.
    (found,) = measured([collective_record(spec, lambda _: 1e-3)])
    size = found.sizes[1]
    assert size.algorithm_bytes_per_second.value == pytest.approx(1e9)
    assert size.bus_bytes_per_second.value == pytest.approx(1.5e9)


def test_failures_are_kept_with_their_reasons() -> None:
    records = [
        failed_record(SPEC, Status.TIMED_OUT, "after 60 s"),
        collective_record(replace(SPEC, repetition=1), affine(1e-4, 1e9)),
    ]
    (found,) = measured(records)
    assert found.repetitions == 1
    assert found.failures == ((Status.TIMED_OUT, "after 60 s"),)


@pytest.mark.parametrize(
    ("collective", "group_size", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("all_reduce", 1, 0.0),
    ],
)
def test_the_factor_is_that_of_nccl_tests(collective: str, group_size: int, factor: float) -> None:
    assert bus_factor(collective, group_size) == factor
