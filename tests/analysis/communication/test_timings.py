"""From ranks, samples and repetitions to one number with an interval."""

from __future__ import annotations

from dataclasses import replace
from math import exp, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.analysis.communication.timings import (
    CollectiveCurve,
    Overlap,
    curves,
    measured,
    overlap_of,
)
from dpbench.collectives import ExchangeTiming, SizeTiming
from dpbench.records import Status
from tests.analysis.communication.collective_records import (
    SIZES,
    affine,
    collective_record,
    collective_spec,
    exchange_timing,
    failed_record,
    overlap_timing,
)

MIB = 2**20
SPEC = collective_spec(sizes_bytes=(4, MIB))


def test_a_sample_takes_as_long_as_its_slowest_rank() -> None:
    record = collective_record(SPEC, affine(1e-3, 1e9))
    first, second = record.ranks
    slow = SizeTiming(nbytes=4, calls_per_sample=1, seconds=(0.5e-3, 5e-3, 3e-3))
    second = replace(second, timings=(slow, second.timings[1]))
    (found,) = measured([replace(record, ranks=(first, second))])
    # The slower of 1 ms and 0.5, 5, 3 ms: 1, 5, 3, of which the median is 3.
    assert found.sizes[0].seconds.value == pytest.approx(3e-3)


def test_one_sample_that_lost_its_core_does_not_count() -> None:
    record = collective_record(SPEC, affine(1e-4, 1e9), samples=(1.0, 1.1, 0.9, 1.0, 50.0))
    (found,) = measured([record])
    assert found.sizes[0].seconds.value == pytest.approx(1e-4, rel=1e-3)
    assert found.sizes[0].samples == 5


def test_repetitions_give_a_geometric_mean_with_its_t_interval() -> None:
    records = [
        collective_record(replace(SPEC, repetition=number), lambda _, t=seconds: t)
        for number, seconds in enumerate((1e-3, 4e-3))
    ]
    (found,) = measured(records)
    seconds = found.sizes[1].seconds
    assert seconds.value == pytest.approx(2e-3)
    # Logarithms ± ln 2: standard deviation √2 ln 2, of the mean ln 2; t is 12.706 at 1.
    assert seconds.high == pytest.approx(2e-3 * exp(12.706 * sqrt(0.480453)), rel=1e-3)
    assert seconds.sample_size == 2
    assert found.sizes[1].algorithm_bandwidth.value == pytest.approx(MIB / 2e-3)


def test_a_single_repetition_has_no_interval() -> None:
    (found,) = measured([collective_record(SPEC, affine(1e-4, 1e9))])
    assert found.sizes[0].seconds.interval is None


def test_bandwidths_and_the_share_of_copies() -> None:
    spec = collective_spec(sizes_bytes=(4, 10**6), group_size=4)
    # 1 ms of 1 MB: 1 GB/s, busbw 1.5 of that; copies at 10 GB/s.
    (found,) = measured([collective_record(spec, lambda _: 1e-3)])
    size = found.sizes[1]
    assert size.algorithm_bandwidth.value == pytest.approx(1e9)
    assert size.bus_bandwidth.value == pytest.approx(1.5e9)
    assert size.copy_share is not None
    assert size.copy_share.value == pytest.approx(0.1)


def test_without_copies_there_is_no_share_of_them() -> None:
    (found,) = measured([collective_record(SPEC, affine(0, 1e9), copy_bytes_per_second=None)])
    assert found.sizes[0].copy_share is None


def test_failures_are_kept_with_their_reasons_and_runs_again_count_once() -> None:
    again = replace(SPEC, repetition=1)
    records = [
        failed_record(SPEC, Status.TIMED_OUT, "after 60 s"),
        failed_record(again, Status.FAILED, "rank 1 died"),
        collective_record(again, affine(1e-4, 1e9)),
    ]
    (found,) = measured(records)
    assert found.repetitions == 1
    assert found.failures == ((Status.TIMED_OUT, "after 60 s"),)


def test_a_size_that_a_rank_lacks_does_not_count() -> None:
    spec = replace(SPEC, exchange_sizes_bytes=(MIB,), overlap_sizes_bytes=(MIB,))
    record = collective_record(
        spec,
        affine(1e-4, 1e9),
        overlaps=[overlap_timing(MIB, alone=1e-2, beside=1e-2, collective=1e-3, stretched=1e-3)],
        exchanges=[exchange_timing(MIB, 1e-3)],
    )
    assert len(measured([record])[0].exchanges) == len(measured([record])[0].overlaps) == 1
    first, second = record.ranks
    damaged = replace(record, ranks=(first, replace(second, overlaps=(), exchanges=())))
    (found,) = measured([damaged])
    assert found.exchanges == found.overlaps == ()


def test_hosts_are_counted() -> None:
    spec = collective_spec(sizes_bytes=(4, MIB), group_size=4)
    (found,) = measured([collective_record(spec, affine(1e-4, 1e9), hosts=("a", "b"))])
    assert found.nodes == 2


@pytest.mark.parametrize(
    ("beside", "stretched", "lost", "stretch"),
    [
        # 10 ms of computing take 12 beside a collective of 4: half of it is lost.
        (12e-3, 4e-3, 0.5, 1.0),
        (10e-3, 6e-3, 0.0, 1.5),
        # The collective outlasts the computing, which loses a fifth all along.
        (12.5e-3, 20e-3, 0.2, 5.0),
    ],
)
def test_lost_share_and_stretch(
    beside: float, stretched: float, lost: float, stretch: float
) -> None:
    timing = overlap_timing(4, alone=10e-3, beside=beside, collective=4e-3, stretched=stretched)
    assert overlap_of([timing]) == pytest.approx((stretched, lost, stretch))


def test_overlaps_are_means_over_ranks_and_repetitions() -> None:
    spec = replace(SPEC, overlap_sizes_bytes=(MIB,))
    records = [
        collective_record(
            replace(spec, repetition=number),
            affine(1e-4, 1e9),
            overlaps=[overlap_timing(MIB, alone=10e-3, beside=b, collective=4e-3, stretched=4e-3)],
        )
        for number, b in enumerate((11e-3, 13e-3))
    ]
    (found,) = measured(records)
    assert found.overlaps[0].lost_share.value == pytest.approx(0.5)
    assert found.overlaps[0].stretch.value == pytest.approx(1.0)
    assert found.overlaps[0].seconds.value == pytest.approx(4e-3)


def test_a_bucket_in_a_step_costs_what_the_last_rank_to_arrive_waits() -> None:
    record = collective_record(replace(SPEC, exchange_sizes_bytes=(MIB,)), affine(1e-4, 1e9))
    # Rank 0 arrives first twice, rank 1 once: 2, 3 and 4 ms are the collective's.
    times = ((5e-3, 3e-3, 6e-3), (2e-3, 8e-3, 4e-3))
    ranks = tuple(
        replace(
            rank,
            exchanges=(
                ExchangeTiming(
                    nbytes=MIB, copy_seconds=(1e-3 * (1 + rank.rank),) * 3, collective_seconds=own
                ),
            ),
        )
        for rank, own in zip(record.ranks, times, strict=True)
    )
    (found,) = measured([replace(record, ranks=ranks)])
    assert found.exchanges[0].seconds.value == pytest.approx(3e-3)
    assert found.exchanges[0].copy_seconds.value == pytest.approx(2e-3)


HOCKNEY = affine(20e-6, 2e9)


def curve(sizes: tuple[int, ...], seconds: tuple[float, ...], **more: object) -> CollectiveCurve:
    plain = CollectiveCurve(
        collective="all_reduce",
        backend="gloo",
        group_size=2,
        sizes_bytes=sizes,
        seconds=seconds,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


AFFINE = curve(SIZES, tuple(map(HOCKNEY, SIZES)))


@pytest.mark.parametrize("nbytes", SIZES)
def test_measured_sizes_have_their_measured_times(nbytes: int) -> None:
    assert AFFINE.seconds_at(nbytes) == pytest.approx(HOCKNEY(nbytes), rel=1e-12)


def test_between_sizes_four_apart_it_is_within_three_percent_of_a_line() -> None:
    sizes = [2 * size for size in SIZES[:-1]]
    errors = [AFFINE.seconds_at(size) / HOCKNEY(size) - 1 for size in sizes]
    assert max(map(abs, errors)) < 0.03


def test_a_power_law_is_met_between_sizes() -> None:
    law = curve((1, 100, 10_000), (1e-6, 1e-5, 1e-4))
    assert law.seconds_at(10) == pytest.approx(10**-5.5)


def test_above_it_goes_on_as_the_last_octaves() -> None:
    assert AFFINE.seconds_at(1e9) == pytest.approx(HOCKNEY(10**9), rel=1e-9)
    assert AFFINE.bytes_per_second == pytest.approx(2e9)
    assert AFFINE.latency_seconds == pytest.approx(20e-6, rel=1e-3)


def test_a_protocol_switch_long_before_does_not_bend_the_end() -> None:
    slow_start = curve((1000, 10_000, 10**6, 4 * 10**6), (1e-3, 2e-3, 1e-3, 4e-3))
    assert slow_start.seconds_at(8 * 10**6) == pytest.approx(8e-3)


def test_below_it_is_the_smallest_sizes_time_and_nothing_costs_nothing() -> None:
    assert AFFINE.seconds_at(1) == AFFINE.seconds[0]
    assert AFFINE.seconds_at(0) == 0


def test_times_that_fall_with_the_size_go_on_with_the_last_ones_time_per_byte() -> None:
    falling = curve((1000, 2000), (4e-3, 2e-3))
    assert falling.seconds_at(4000) == pytest.approx(4e-3)


def test_it_covers_what_was_measured() -> None:
    assert [AFFINE.covers(n) for n in (3, 4, 5e6, SIZES[-1], SIZES[-1] + 1)] == [
        False,
        True,
        True,
        True,
        False,
    ]


@given(st.lists(st.floats(1e-7, 10), min_size=2, max_size=14), st.floats(1, 1e12))
def test_times_are_positive_and_between_their_neighbours(
    seconds: list[float], nbytes: float
) -> None:
    sizes = SIZES[: len(seconds)]
    took = curve(sizes, tuple(seconds)).seconds_at(nbytes)
    if nbytes > sizes[-1]:
        assert took >= seconds[-1]
    else:
        place = next(i for i, size in enumerate(sizes) if nbytes <= size)
        near = seconds[max(place - 1, 0) : place + 1]
        assert min(near) * (1 - 1e-9) <= took <= max(near) * (1 + 1e-9)


def test_overlap_is_interpolated_along_the_logarithm_of_the_size() -> None:
    measured = curve(
        SIZES,
        AFFINE.seconds,
        overlaps=(
            Overlap(nbytes=1000, lost_share=0.2, stretch=3.0),
            Overlap(nbytes=100_000, lost_share=0.4, stretch=1.0),
        ),
    )
    assert measured.lost_share_at(10_000) == pytest.approx(0.3)
    assert measured.stretch_at(10_000) == pytest.approx(2.0)
    assert measured.stretch_at(1) == 3.0
    assert measured.lost_share_at(1e9) == 0.4


def test_what_was_not_measured_of_overlap_is_none_of_it() -> None:
    assert AFFINE.lost_share_at(10) == 0
    assert AFFINE.stretch_at(10) == 1


def test_curves_come_from_records_that_completed() -> None:
    records = [
        collective_record(collective_spec(sizes_bytes=SIZES), HOCKNEY),
        collective_record(collective_spec(sizes_bytes=(4,), backend="shm"), HOCKNEY),
    ]
    (found,) = curves(records)
    assert found.seconds == pytest.approx(AFFINE.seconds)


def test_what_a_step_sees_is_a_curve_of_its_own() -> None:
    spec = collective_spec(exchange_sizes_bytes=(64, 1024))
    exchanges = [exchange_timing(64, 1e-3), exchange_timing(1024, 4e-3)]
    (found,) = curves([collective_record(spec, HOCKNEY, exchanges=exchanges)])
    assert found.in_step is not None
    assert found.in_step.seconds_at(256) == pytest.approx(2e-3)
    assert found.seconds_at(256) == pytest.approx(HOCKNEY(256))
    assert AFFINE.in_step is None


def test_both_curves_take_as_long_beside_computing() -> None:
    spec = collective_spec(exchange_sizes_bytes=(64, 1024), overlap_sizes_bytes=(1024,))
    exchanges = [exchange_timing(64, 1e-3), exchange_timing(1024, 4e-3)]
    overlap = overlap_timing(1024, alone=10e-3, beside=10e-3, collective=2e-3, stretched=6e-3)
    (found,) = curves(
        [collective_record(spec, lambda _: 1e-3, exchanges=exchanges, overlaps=[overlap])]
    )
    assert found.in_step is not None
    assert found.stretch_at(1024) * found.seconds_at(1024) == pytest.approx(6e-3)
    assert found.in_step.stretch_at(1024) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("sizes", "seconds", "message"),
    [
        ((4,), (1.0,), "two sizes or more"),
        ((4, 4), (1.0, 1.0), "rising positive sizes"),
        ((4, 8), (1.0, 0.0), "positive times"),
        ((4, 8), (1.0, float("nan")), "positive times"),
    ],
)
def test_a_curve_that_cannot_be_is_refused(
    sizes: tuple[int, ...], seconds: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        curve(sizes, seconds)
