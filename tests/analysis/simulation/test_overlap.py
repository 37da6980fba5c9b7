from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.analysis.simulation.buckets import Bucket, into_buckets
from dpbench.analysis.simulation.overlap import SimulatedStep, simulate
from dpbench.analysis.simulation.trace import StepTrace
from tests.analysis.simulation.traces import step


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
        assert found.timeline[-1].end_seconds == pytest.approx(last, abs=1e-9)
        assert found.communication_seconds == pytest.approx(costs.sum())
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
    found = uniform(2, 0.3, stretch=2.0)
    assert found.timeline[0].end_seconds == pytest.approx(1.6)
    assert found.exposed_seconds == pytest.approx(0.3)


def test_a_collective_that_outlasts_computing_goes_on_at_its_plain_speed() -> None:
    # Ready at 1 s, backward ends at 2: in that second half a second's worth of 0.9 s is done.
    found = simulate(step([1.0, 2.0], [1, 1]), buckets([1.0]), lambda _: 0.9, stretch=lambda _: 2.0)
    assert found.step_seconds == pytest.approx(2.4)


def test_lost_computing_makes_later_buckets_late() -> None:
    # From 1 to 2 s half of computing is lost, so the second bucket is ready at 2.5 s.
    found = simulate(step([1.0, 2.0]), buckets([1.0, 2.0]), lambda _: 1.0, lost_share=lambda _: 0.5)
    assert found.timeline[1].start_seconds == pytest.approx(2.5)
    assert found.step_seconds == pytest.approx(3.5)


def test_more_than_all_computing_can_be_lost() -> None:
    assert uniform(2, 0.5, lost_share=1.2).exposed_seconds == pytest.approx(0.6 + 0.5)


def test_a_share_below_zero_is_noise() -> None:
    assert uniform(3, 0.4, lost_share=-5.0).exposed_seconds == pytest.approx(0.4)


def test_buffers_are_sent_before_anything_else() -> None:
    trace = step([1.0, 2.0], buffer_bytes=50)
    plain = simulate(trace, buckets([1.0, 2.0]), lambda nbytes: nbytes / 100)
    assert plain.timeline[0].start_seconds == pytest.approx(1.5)
    assert plain.exposed_seconds == pytest.approx(0.51)
    cheap = simulate(trace, buckets([1.0, 2.0]), lambda _: 0.01, broadcast=lambda _: 0.1)
    assert cheap.exposed_seconds == pytest.approx(0.11)
    assert cheap.communication_seconds == pytest.approx(0.12)


def test_only_the_last_micro_step_communicates() -> None:
    trace = step([1.0, 2.0], optimizer=0.5)
    one = simulate(trace, buckets([1.0, 2.0]), lambda _: 0.3)
    four = simulate(trace, buckets([1.0, 2.0]), lambda _: 0.3, accumulation_steps=4)
    assert four.step_seconds == pytest.approx(one.step_seconds + 3 * 2.0)
    assert four.compute_seconds == pytest.approx(4 * 2.0 + 0.5)
    assert four.timeline[0].start_seconds == pytest.approx(7.0)


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
        assert together.timeline[-1].end_seconds[place] == pytest.approx(
            single.timeline[-1].end_seconds
        )


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
