"""Steps of many replicas against numbers of a survey and worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.analysis.estimate import LogMean
from dpbench.analysis.laws.band import published_misspecification
from dpbench.analysis.projection.simulation import Bucket
from dpbench.analysis.projection.step_model import (
    EXACT,
    Inputs,
    Spread,
    StepModel,
    ends_of_deviation,
    ends_of_mean,
    part_band,
    step_band,
)
from dpbench.analysis.projection.stragglers import expected_maximum
from tests.analysis.projection.models import StandIn, resnet50
from tests.analysis.projection.traces import assumed_noise, step

H100_BUCKET_SECONDS = {8: 175e-6, 64: 265e-6, 1000: 333e-6, 10_000: 384e-6}
V100_BUCKET_SECONDS = {16: 4.3e-3, 64: 5.0e-3, 256: 5.7e-3, 1000: 5.8e-3}
"""Of 25 MiB by NCCL's formula: 370 GB/s inside nodes of 8; nodes with one 100 Gb/s port."""
BUCKET_SECONDS = 0.4


def efficiencies(model: StepModel, group_sizes: dict[int, float]) -> list[float]:
    alone = model.mean_step(1).seconds
    return [alone / model.mean_step(n).seconds for n in group_sizes]


def uniform(**changes: object) -> StepModel:
    """Five buckets of one byte a second apart, 0.4 s each; then 1 s of optimizer."""
    ready = [1.0, 2.0, 3.0, 4.0, 5.0]
    values = {
        "trace": step(ready, optimizer=1.0),
        "buckets": tuple(Bucket(ready_seconds=r, nbytes=1) for r in ready),
        "network": StandIn(lambda nbytes, n: BUCKET_SECONDS),
    }
    return StepModel(**{**values, **changes})


def test_resnet50_on_fast_links_loses_half_a_percent_at_ten_thousand() -> None:
    model = resnet50(0.088, H100_BUCKET_SECONDS, cv=0.0)
    known = [0.998, 0.997, 0.997, 0.996]
    assert efficiencies(model, H100_BUCKET_SECONDS) == pytest.approx(known, abs=0.0006)


def test_one_percent_of_noise_costs_resnet50_more_than_its_network() -> None:
    model = resnet50(0.088, H100_BUCKET_SECONDS, cv=0.01)
    known = [0.985, 0.975, 0.966, 0.960]
    assert efficiencies(model, H100_BUCKET_SECONDS) == pytest.approx(known, abs=0.0015)


def test_resnet50_on_100_gigabit_nodes() -> None:
    model = resnet50(0.097, V100_BUCKET_SECONDS, cv=0.01)
    known = [0.947, 0.937, 0.927, 0.923]
    assert efficiencies(model, V100_BUCKET_SECONDS) == pytest.approx(known, abs=0.0015)


def test_only_the_last_bucket_is_exposed_where_the_others_fit_between() -> None:
    found = uniform().mean_step(8)
    assert found.seconds == pytest.approx(6.4)
    assert found.exposed_seconds == pytest.approx(0.4)
    assert found.straggler_seconds == 0


def test_perfect_and_no_overlap_are_the_bounds_of_the_closed_form() -> None:
    assert uniform(overlap="none").mean_step(8).seconds == pytest.approx(5 + 5 * 0.4 + 1)
    slow = StandIn(lambda nbytes, n: 2.5)
    perfect = uniform(overlap="perfect", network=slow).mean_step(8)
    assert perfect.seconds == pytest.approx(1 + 5 * 2.5 + 1)
    assert uniform(overlap="perfect").mean_step(8).seconds == pytest.approx(6)


@given(
    cost=st.floats(0, 5),
    cv=st.floats(0.001, 0.2),
    n=st.integers(2, 10_000),
    accumulation=st.integers(1, 4),
    fills=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_a_step_lies_between_perfect_overlap_and_none(
    cost: float, cv: float, n: int, accumulation: int, fills: bool
) -> None:
    model = uniform(
        network=StandIn(lambda nbytes, _: cost),
        noise=assumed_noise(round(cv, 3)),
        accumulation_steps=accumulation,
        fills_buckets=fills,
    )
    low, middle, high = (
        replace(model, overlap=overlap).mean_step(n).seconds
        for overlap in ("perfect", "simulated", "none")
    )
    assert low <= middle + 1e-9
    assert middle <= high + 1e-9


@given(slower=st.floats(1, 100), n=st.integers(2, 1000))
@settings(max_examples=50, deadline=None)
def test_less_bandwidth_never_makes_a_step_shorter(slower: float, n: int) -> None:
    fast = StandIn(lambda nbytes, _: 0.1 + nbytes / 10)
    slow = StandIn(lambda nbytes, _: 0.1 + slower * nbytes / 10)
    step_of = [uniform(network=one).mean_step(n).seconds for one in (fast, slow)]
    assert step_of[0] <= step_of[1] + 1e-12


def test_stragglers_cost_what_the_slowest_of_n_takes_longer() -> None:
    noise = assumed_noise(0.01)
    free = StandIn(lambda nbytes, n: 0.0)
    found = uniform(noise=noise, network=free).mean_step(1000)
    lost = 6 * (expected_maximum(noise, 1000) - expected_maximum(noise, 1))
    assert found.straggler_seconds == pytest.approx(lost, rel=0.02)
    assert uniform(noise=noise).mean_step(1).straggler_seconds == pytest.approx(0, abs=1e-12)


def test_without_stragglers_all_take_what_one_takes_on_average() -> None:
    noisy = uniform(noise=assumed_noise(0.3))
    even = noisy.without_stragglers()
    assert even.mean_step(1).seconds == pytest.approx(noisy.mean_step(1).seconds)
    assert even.mean_step(1000).straggler_seconds == 0


def test_micro_steps_but_the_last_communicate_nothing() -> None:
    found = uniform(accumulation_steps=4).mean_step(8)
    assert found.seconds == pytest.approx(3 * 5 + 6.4)


def test_buckets_that_are_filled_first_make_the_backward_pass_longer() -> None:
    model = uniform(fills_buckets=True)
    assert model.mean_step(8).seconds == pytest.approx(6.4 + 5 * 0.1)
    assert model.mean_step(1).seconds == pytest.approx(6)


def test_contention_is_that_of_the_replicas_on_a_machine() -> None:
    model = uniform(contention={2: 1.2, 8: 2.0})
    assert [model.contention_at(n) for n in (1, 2, 8, 1000)] == [1, 1.2, 2, 2]
    assert replace(model, replicas_per_node=2).contention_at(1000) == 1.2
    assert replace(model, replicas_per_node=1).contention_at(1000) == 1
    assert model.mean_step(2).seconds == pytest.approx(6 * 1.2 + 0.4)


def test_inputs_scale_what_they_are_named_after() -> None:
    model = uniform(noise=assumed_noise(0.1))
    plain, compute, network, noise = model.mean_steps(
        64, [Inputs(), Inputs(compute=2), Inputs(communication=2), Inputs(noise=0)]
    )
    alone = model.mean_step(1).seconds
    assert network.seconds == pytest.approx(plain.seconds + BUCKET_SECONDS)
    assert compute.seconds == pytest.approx(2 * plain.seconds - BUCKET_SECONDS)
    assert noise.seconds == pytest.approx(alone + 0.4)


def test_more_noise_leaves_the_step_of_one_replica_as_it_was_measured() -> None:
    model = uniform(noise=assumed_noise(0.2))
    plain, more = model.mean_steps(1, [Inputs(), Inputs(noise=2)])
    assert more.seconds == pytest.approx(plain.seconds)
    one, two = model.mean_steps(64, [Inputs(), Inputs(noise=2)])
    assert two.seconds > 1.2 * one.seconds


def test_contention_moves_only_replicas_that_share_a_machine() -> None:
    model = uniform(contention={2: 1.2})
    seconds = [model.mean_step(n, Inputs(contention=1.5)).seconds for n in (1, 2)]
    assert seconds == pytest.approx([6, 6 * 1.8 + 0.4])


def test_buffers_are_sent_as_broadcasts_of_the_network() -> None:
    trace = step([1.0, 2.0, 3.0, 4.0, 5.0], optimizer=1.0, buffer_bytes=10)
    for overlap, expected in (("simulated", 9.2), ("none", 10.8), ("perfect", 8.8)):
        found = uniform(trace=trace, overlap=overlap).mean_step(8)
        assert found.seconds == pytest.approx(expected)


def test_the_tail_of_a_backward_pass_does_not_grow_with_the_slowest_of_many() -> None:
    """Else the last all-reduce hides behind a host that waits for nobody."""
    trace = step([1.0], end=1.1)
    model = uniform(
        trace=trace, buckets=(Bucket(ready_seconds=1.0, nbytes=1),), noise=assumed_noise(0.5)
    )
    usual = expected_maximum(assumed_noise(0.5), 1)
    found = model.mean_step(10_000)
    assert found.exposed_seconds == pytest.approx(0.4 - 0.1 * usual, rel=1e-3)


def test_a_bracket_fills_buckets_at_the_speed_of_memory() -> None:
    """The slowest takes twice as long to compute, and not to copy."""
    slow = StandIn(lambda nbytes, n: 2.5)
    model = uniform(overlap="perfect", network=slow, fills_buckets=True, contention={2: 2.0})
    # The first bucket is computed at 2 s and filled at 2.1; all five take 12.5 s; optimizer 2 s.
    assert model.mean_step(2).seconds == pytest.approx(2.1 + 12.5 + 2)


def test_ten_thousand_replicas_take_as_many_draws_as_two() -> None:
    model = uniform(noise=assumed_noise(0.05))
    assert model._slowdowns(10_000).shape == model._slowdowns(2).shape
    assert np.all(model._slowdowns(10_000) > 1)


def test_the_ends_of_a_deviation_are_those_of_chi_square() -> None:
    low, high = ends_of_deviation(10)
    assert low == pytest.approx(math.sqrt(10 / 18.307), rel=1e-4)
    assert high == pytest.approx(math.sqrt(10 / 3.940), rel=1e-4)


def test_the_ends_of_a_mean_are_those_of_student_at_90_percent() -> None:
    mean = LogMean(
        value=5.0, squared_error=0.01**2, degrees_of_freedom=4, sample_size=5, basis="repetitions"
    )
    assert ends_of_mean(mean) == pytest.approx((math.exp(-0.021318), math.exp(0.021318)), rel=1e-5)
    assert ends_of_mean(LogMean.of_single(3.0)) == EXACT


def test_every_input_is_moved_alone() -> None:
    plain, *cases = Spread(compute=(0.9, 1.1), noise=(0.5, 2.0)).cases()
    assert (plain.compute, plain.communication, plain.noise) == (1, 1, 1)
    assert [case.compute for case in cases] == [0.9, 1.1, 1, 1, 1, 1, 1, 1]
    assert [case.noise for case in cases] == [1, 1, 1, 1, 1, 1, 0.5, 2.0]


def test_swings_add_up_as_squares_on_logarithms() -> None:
    swings = [0.03, -0.03, 0.04, -0.04]
    found = step_band([2.0, *(2 * math.exp(s) for s in swings)], 0.0, sample_size=30)
    assert found.interval == pytest.approx((2 * math.exp(-0.05), 2 * math.exp(0.05)))
    assert (found.confidence, found.basis, found.sample_size) == (0.9, "model", 30)


def test_beyond_the_data_the_error_of_the_model_makes_steps_slower() -> None:
    found, law = step_band([1.0], 3.0, sample_size=1), published_misspecification().beyond
    ends = [math.exp(end * math.sqrt(3)) for end in (law.low, law.high)]
    assert found.interval == pytest.approx(tuple(ends))
    assert law.high > -law.low


def test_the_error_that_the_simulation_was_seen_to_have_widens_both_sides() -> None:
    found = step_band([2.0, 2 * math.exp(0.03)], 0.0, sample_size=3, model_error=0.04)
    assert found.interval == pytest.approx((2 * math.exp(-0.04), 2 * math.exp(0.05)))


def test_a_part_of_a_step_does_not_get_below_zero_by_its_band() -> None:
    assert part_band([0.1, -0.2, 0.3], sample_size=1).interval == pytest.approx((0.0, 0.3))


def test_parts_of_a_step_may_be_zero() -> None:
    found = part_band([0.0, 0.0, 0.3, 0.4, 0.0], sample_size=1)
    assert (found.value, found.low, found.high) == (0, 0, pytest.approx(0.5))
