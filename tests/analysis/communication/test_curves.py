"""Curves through measured sizes, and beyond them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.analysis.communication.curves import CollectiveCurve, OverlapPoint, curves
from tests.analysis.communication.collective_records import (
    SIZES,
    affine,
    collective_record,
    collective_spec,
    exchange_timing,
    overlap_timing,
)

MIB = 2**20
SPEC = collective_spec(sizes_bytes=(4, MIB))

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
            OverlapPoint(nbytes=1000, lost_share=0.2, stretch=3.0),
            OverlapPoint(nbytes=100_000, lost_share=0.4, stretch=1.0),
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
