"""Gradients in buckets, and what a cap on their size does to a step."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dpbench.analysis.projection.simulation import (
    Bucket,
    SimulatedStep,
    StepTrace,
    caps_bytes,
    into_buckets,
    simulate,
    step_trace,
    tracing_overhead,
)
from dpbench.parallel.ddp.buckets import BucketCaps, assign_buckets
from dpbench.specs.traits import DEFAULT_CAP_MB, DEFAULT_FIRST_CAP_MB
from dpbench.specs.trial import BUCKETED
from dpbench.units import MEBI
from tests.analysis.projection.traces import gradient_trace, step


def test_a_trace_is_the_median_of_all_its_steps_in_the_order_of_readiness() -> None:
    found = step_trace([gradient_trace((0.008, 0.010)), gradient_trace((0.010, 0.1, 0.1))])
    assert found.step_seconds == pytest.approx(0.010)
    assert (found.forward_seconds, found.backward_seconds) == pytest.approx((0.0025, 0.005))
    assert found.optimizer_seconds == pytest.approx(0.0025)
    assert found.ready_seconds == pytest.approx([0.0025 + 0.000625 * i for i in range(1, 9)])
    assert found.sample_size == 5


def test_sizes_and_dtypes_follow_their_gradients() -> None:
    names = tuple("float32" if i else "bfloat16" for i in range(8))
    trace = gradient_trace(gradient_bytes=(1, 2, 3, 4, 5, 6, 7, 8), gradient_dtypes=names)
    found = step_trace([trace])
    assert found.gradient_bytes == (8, 7, 6, 5, 4, 3, 2, 1)
    assert found.gradient_dtypes[-1] == "bfloat16"


def test_traces_of_different_gradients_are_refused() -> None:
    with pytest.raises(ValueError, match="the same gradients"):
        step_trace([gradient_trace(), gradient_trace(gradient_bytes=(1,) * 8)])
    with pytest.raises(ValueError, match="a trace at least"):
        step_trace([])


def test_gradients_are_ready_in_order_and_before_the_backward_pass_ends() -> None:
    with pytest.raises(ValueError, match="order"):
        step([2.0, 1.0])
    with pytest.raises(ValueError, match="after the end"):
        step([1.0, 2.0], end=1.5)
    with pytest.raises(ValueError, match="dtype"):
        step([1.0, 2.0], gradient_dtypes=("float32",))


def test_the_overhead_of_one_repetition_is_over_its_pairs_of_steps() -> None:
    trace = gradient_trace((0.011, 0.0099), untraced_step_seconds=(0.010, 0.010))
    found = tracing_overhead([trace])
    assert found.value == pytest.approx(math.sqrt(1.1 * 0.99))
    assert (found.basis, found.sample_size) == ("step batches", 2)


def test_the_overhead_of_several_is_over_repetitions() -> None:
    traces = [gradient_trace(untraced_step_seconds=(u, u)) for u in (0.010, 0.0098, 0.0102)]
    found = tracing_overhead(traces)
    assert (found.basis, found.sample_size) == ("repetitions", 3)
    assert found.contains(1.0)


def test_an_overhead_needs_an_untraced_step_for_every_traced_one() -> None:
    with pytest.raises(ValueError, match="shorter"):
        tracing_overhead([replace(gradient_trace(), untraced_step_seconds=(0.01,))])


def test_a_bucket_is_closed_by_the_gradient_that_fills_it() -> None:
    trace = step([1.0, 2.0, 3.0, 4.0, 5.0], [3, 4, 12, 1, 1])
    found = into_buckets(trace, cap_bytes=10, first_cap_bytes=5)
    assert [(b.ready_seconds, b.nbytes) for b in found] == [(2.0, 7), (3.0, 12), (5.0, 2)]


def test_each_dtype_has_buckets_and_a_first_cap_of_its_own() -> None:
    names = ("float32", "bfloat16", "float32", "bfloat16")
    trace = step([1.0, 2.0, 3.0, 4.0], [4, 2, 4, 2], gradient_dtypes=names)
    found = into_buckets(trace, cap_bytes=100, first_cap_bytes=4)
    assert [(b.ready_seconds, b.nbytes) for b in found] == [(1.0, 4), (4.0, 4), (3.0, 4)]


def test_an_infinite_cap_makes_one_bucket() -> None:
    [bucket] = into_buckets(step([1.0, 2.0], [5, 7]), cap_bytes=caps_bytes(math.inf)[0])
    assert (bucket.ready_seconds, bucket.nbytes) == (2.0, 12)


@pytest.mark.parametrize("cap", [0.0, -1.0, math.nan])
def test_a_cap_that_is_not_above_zero_is_refused(cap: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        into_buckets(step([1.0]), cap_bytes=cap)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 200),
    st.integers(1, 200),
)
def test_they_are_the_buckets_of_our_ddp(
    gradients: list[tuple[int, bool]], first: int, cap: int
) -> None:
    dtypes = [torch.float64 if wide else torch.float32 for _, wide in gradients]
    parameters = [
        nn.Parameter(torch.empty(count, dtype=dtype, device="meta"))
        for (count, _), dtype in zip(gradients, dtypes, strict=True)
    ]
    trace = step(
        [float(i) for i in range(len(parameters))],
        [parameter.nbytes for parameter in parameters],
        gradient_dtypes=tuple(map(str, dtypes)),
    )
    real = assign_buckets(range(len(parameters)), parameters, BucketCaps((first, cap)))
    found = into_buckets(trace, cap_bytes=cap, first_cap_bytes=first)
    assert [(b.ready_seconds, b.nbytes) for b in found] == [
        (float(max(indices)), sum(parameters[i].nbytes for i in indices)) for indices in real
    ]


@pytest.mark.parametrize("cap_mb", [None, 0.5, 3.0])
def test_caps_are_those_of_our_ddp(cap_mb: float | None) -> None:
    cap, first = caps_bytes(cap_mb)
    real = BucketCaps.chosen(cap_mb, None)
    assert (real.of(0), real.of(1)) == (cap if first is None else first, cap)


def test_the_default_caps_are_those_of_torch() -> None:
    assert DEFAULT_CAP_MB == torch.nn.parallel.distributed._DEFAULT_BUCKET_CAP_MB
    assert DEFAULT_FIRST_CAP_MB * MEBI == dist._DEFAULT_FIRST_BUCKET_BYTES


def test_the_implementations_with_buckets_are_known() -> None:
    assert BUCKETED == ("ddp", "torch-ddp", "torch-ddp-static")


BACKWARD = 0.06
BYTES = 100e6
LATENCY = 30e-6


def exposed(count: int, bytes_per_second: float) -> float:
    """Of equal buckets that get ready evenly."""
    ready = [BACKWARD * (k + 1) / count for k in range(count)]
    trace = step(ready)
    buckets = [Bucket(ready_seconds=r, nbytes=round(BYTES / count)) for r in ready]
    found = simulate(trace, buckets, lambda nbytes: LATENCY + nbytes / bytes_per_second)
    return float(found.exposed_seconds)


def test_few_buckets_leave_much_to_the_end() -> None:
    assert exposed(4, 2.5e9) == pytest.approx(10.03e-3, rel=1e-6)
    assert exposed(1, 2.5e9) == pytest.approx(40.03e-3, rel=1e-6)


def buckets(ready: list[float], sizes: list[int] | None = None) -> list[Bucket]:
    sizes = sizes or [1] * len(ready)
    return [Bucket(ready_seconds=r, nbytes=s) for r, s in zip(ready, sizes, strict=True)]


def uniform(count: int, cost: float, **options: float) -> SimulatedStep:
    """Buckets that get ready one second apart, the last at the end of the backward pass."""
    ready = [float(i) for i in range(1, count + 1)]
    shares = {
        name: lambda _, value=value: value
        for name, value in options.items()
        if name in ("lost_share", "stretch")
    }
    return simulate(step(ready), buckets(ready), lambda _: cost, **shares)


def test_it_is_the_closed_form_on_2000_random_traces() -> None:
    random = np.random.default_rng(0)
    for _ in range(2000):
        count = int(random.integers(1, 12))
        ready = np.sort(random.uniform(0, 10, count))
        costs = random.exponential(10 / count, count)
        end, tail = ready[-1] + random.uniform(0, 3), random.uniform(0, 1)
        trace = step(ready.tolist(), end=end, optimizer=tail)
        found = simulate(
            trace, buckets(ready.tolist(), list(range(count))), lambda k, c=costs: c[int(k)]
        )
        # Bucket 0 has 0 bytes, and nothing is sent of it.
        costs[0] = 0.0
        last = max(ready[j] + costs[j:].sum() for j in range(count))
        assert found.step_seconds == pytest.approx(max(end, last) + tail, abs=1e-9)
        low, high = max(end, ready[0] + costs.sum()), end + costs.sum()
        assert low - 1e-9 <= found.step_seconds - tail <= high + 1e-9


@pytest.mark.parametrize(("cost", "exposed"), [(0.4, 0.4), (2.5, 8.5), (0.0, 0.0), (1.0, 1.0)])
def test_of_uniform_buckets_the_last_is_exposed_or_all_that_piles_up(
    cost: float, exposed: float
) -> None:
    assert uniform(5, cost).exposed_seconds == pytest.approx(exposed, abs=1e-12)


def test_one_bucket_is_exposed_as_a_whole() -> None:
    found = uniform(1, 0.7)
    assert found.exposed_seconds == pytest.approx(0.7)


def test_a_collective_takes_its_share_from_computing() -> None:
    # Two of the three collectives run beside 1 s of computing each, which then takes 0.4 s more.
    found = uniform(3, 0.4, lost_share=0.5)
    assert found.exposed_seconds == pytest.approx(0.2 + 0.2 + 0.4)


def test_with_all_computing_lost_nothing_overlaps() -> None:
    found = uniform(4, 0.3, lost_share=1.0)
    assert found.exposed_seconds == pytest.approx(4 * 0.3)
    assert uniform(4, 3.0, lost_share=1.0).exposed_seconds == pytest.approx(12.0)


def test_a_collective_is_stretched_beside_computing_only() -> None:
    # The first takes 0.6 s beside computing, in which none is lost; the last takes its plain 0.3.
    assert uniform(2, 0.3, stretch=2.0).exposed_seconds == pytest.approx(0.3)
    # In 1 s beside computing the first does 0.5 of its 0.6 s; the rest and the last are exposed.
    assert uniform(2, 0.6, stretch=2.0).exposed_seconds == pytest.approx(0.1 + 0.6)


def test_a_collective_that_outlasts_computing_goes_on_at_its_plain_speed() -> None:
    # Ready at 1 s, backward ends at 2: in that second half a second's worth of 0.9 s is done.
    found = simulate(step([1.0, 2.0], [1, 1]), buckets([1.0]), lambda _: 0.9, stretch=lambda _: 2.0)
    assert found.step_seconds == pytest.approx(2.4)


def test_lost_computing_makes_later_buckets_late() -> None:
    # From 1 to 2 s half of computing is lost, so the second bucket is ready at 2.5 s.
    found = simulate(step([1.0, 2.0]), buckets([1.0, 2.0]), lambda _: 1.0, lost_share=lambda _: 0.5)
    assert found.step_seconds == pytest.approx(3.5)


def test_more_than_all_computing_can_be_lost() -> None:
    assert uniform(2, 0.5, lost_share=1.2).exposed_seconds == pytest.approx(0.6 + 0.5)


def test_a_share_below_zero_is_noise() -> None:
    assert uniform(3, 0.4, lost_share=-5.0).exposed_seconds == pytest.approx(0.4)


def test_buffers_are_sent_before_anything_else() -> None:
    trace = step([1.0, 2.0], buffer_bytes=50)
    plain = simulate(trace, buckets([1.0, 2.0]), lambda nbytes: nbytes / 100)
    assert plain.exposed_seconds == pytest.approx(0.51)
    cheap = simulate(trace, buckets([1.0, 2.0]), lambda _: 0.01, broadcast=lambda _: 0.1)
    assert cheap.exposed_seconds == pytest.approx(0.11)


def test_only_the_last_micro_step_communicates() -> None:
    trace = step([1.0, 2.0], optimizer=0.5)
    one = simulate(trace, buckets([1.0, 2.0]), lambda _: 0.3)
    four = simulate(trace, buckets([1.0, 2.0]), lambda _: 0.3, accumulation_steps=4)
    assert four.step_seconds == pytest.approx(one.step_seconds + 3 * 2.0)
    assert four.compute_seconds == pytest.approx(4 * 2.0 + 0.5)


@given(
    st.lists(st.floats(0.5, 3), min_size=1, max_size=5),
    st.lists(st.floats(0, 5), min_size=1, max_size=6).map(sorted),
    st.floats(0, 3),
    st.floats(-0.2, 1.3),
    st.floats(0.5, 3),
)
def test_an_array_of_slowdowns_is_as_many_single_steps(
    factors: list[float], ready: list[float], cost: float, lost: float, stretch: float
) -> None:
    trace: StepTrace = step(ready, end=ready[-1] + 1, optimizer=0.2)

    def run(slowdown: float | np.ndarray) -> SimulatedStep:
        return simulate(
            trace,
            into_buckets(trace, cap_bytes=2),
            lambda _: cost,
            lost_share=lambda _: lost,
            stretch=lambda _: stretch,
            slowdown=slowdown,
        )

    together = run(np.array(factors))
    for place, factor in enumerate(factors):
        single = run(factor)
        assert together.step_seconds[place] == pytest.approx(single.step_seconds)
        assert together.exposed_seconds[place] == pytest.approx(single.exposed_seconds)


@given(
    st.lists(st.floats(0, 5), min_size=1, max_size=6).map(sorted),
    st.floats(0, 3),
    st.floats(0, 1),
)
def test_a_step_lies_between_perfect_overlap_and_none(
    ready: list[float], cost: float, lost: float
) -> None:
    trace = step(ready, end=ready[-1] + 1)
    found = simulate(trace, buckets(ready), lambda _: cost, lost_share=lambda _: lost)
    perfect = simulate(trace, buckets(ready), lambda _: cost)
    assert perfect.step_seconds <= found.step_seconds + 1e-9
    assert found.step_seconds <= trace.step_seconds + len(ready) * cost + 1e-9


def test_what_makes_no_sense_is_refused() -> None:
    trace, one = step([1.0]), buckets([1.0])
    with pytest.raises(ValueError, match="accumulation"):
        simulate(trace, one, lambda _: 1.0, accumulation_steps=0)
    with pytest.raises(ValueError, match="collective of 1 bytes"):
        simulate(trace, one, lambda _: -1.0)
    with pytest.raises(ValueError, match="stretch"):
        simulate(trace, one, lambda _: 1.0, stretch=lambda _: 0.0)


@pytest.mark.parametrize("lost", [0.99, 1.0, 1.2])
def test_a_lost_share_of_about_one_does_not_decide_on_a_whole_stretch(lost: float) -> None:
    """The last gradient is ready 1 µs before the end: next to nothing is computed beside it."""
    trace = step([2.0 - 1e-6], end=2.0)
    found = simulate(
        trace,
        buckets(trace.ready_seconds),
        lambda _: 0.5,
        lost_share=lambda _: lost,
        stretch=lambda _: 1.5,
    )
    assert found.step_seconds == pytest.approx(2.5, abs=1e-4)


def test_the_tail_of_the_backward_pass_may_have_a_factor_of_its_own() -> None:
    trace = step([1.0], end=1.25, optimizer=0.5)
    found = simulate(
        trace, buckets([1.0]), lambda _: 0.75, slowdown=2.0, tail_slowdown=1.0, accumulation_steps=2
    )
    assert found.compute_seconds == pytest.approx(2 * 2.25 + 1.0)
    assert found.step_seconds == pytest.approx(2.25 + 2.75 + 1.0)
