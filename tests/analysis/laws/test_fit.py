"""Fits of what is known, and what they predict."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.analysis.laws.band import Reach, published_misspecification, sizes_beyond
from dpbench.analysis.laws.fit import fit
from dpbench.analysis.laws.series import LoneStep, Series
from dpbench.errors import UsageError
from tests.analysis.laws.series import log_mean, ring_and_log, series


def test_noise_free_coefficients_are_recovered() -> None:
    found = fit(series(ring_and_log))
    assert [term.name for term in found.terms] == ["const", "ring", "log"]
    assert np.abs(found.coefficients - [0.1, 0.005, 0.002]).max() < 1e-9
    assert found.seconds(16) == pytest.approx(ring_and_log(16), abs=1e-9)


def test_a_single_process_is_linear() -> None:
    found = fit(series(lambda n: 0.1 + 0.01 * (n - 1), implementation="dp"))
    assert np.abs(found.coefficients - [0.1, 0.01]).max() < 1e-9


def test_times_that_only_fall_are_constant() -> None:
    found = fit(series(lambda n: 0.1 / n**0.02))
    assert found.coefficients[1:].tolist() == [0, 0]
    prediction = found.predict(16)
    assert prediction.throughput is not None
    assert prediction.throughput.value == pytest.approx(16 * 32 / found.coefficients[0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=8),
    st.sampled_from([("const", "ring", "log"), ("const", "lin"), ("wrap", "lin", "log")]),
)
def test_a_law_never_predicts_a_negative_time(times: list[float], basis: tuple[str, ...]) -> None:
    sizes = [2**power for power in range(len(times))]
    by_size = dict(zip(sizes, times, strict=True))
    found = fit(series(lambda n: by_size[n], sizes), basis=basis, refits=0)
    assert (found.coefficients >= 0).all()
    assert all(found.seconds(n) >= 0 for n in (1, 100, 10_000))


def test_a_measured_size_is_not_predicted() -> None:
    prediction = fit(series(ring_and_log, relative_error=0.01)).predict(4)
    assert prediction.kind == "measured"
    assert prediction.throughput is not None
    assert prediction.throughput.value == pytest.approx(4 * 32 / ring_and_log(4))
    assert prediction.throughput.basis == "repetitions"
    assert prediction.throughput.sample_size == 5


def test_a_band_is_asymmetric_and_names_its_confidence() -> None:
    speed = fit(series(ring_and_log)).predict(16).throughput
    assert speed is not None
    assert speed.interval is not None
    low, high = speed.interval
    beyond = published_misspecification().beyond
    assert beyond.high > -beyond.low > 0
    assert low / speed.value == pytest.approx(math.exp(-beyond.high))
    assert high / speed.value == pytest.approx(math.exp(-beyond.low))
    assert (speed.basis, speed.confidence, speed.sample_size) == ("model", 0.9, 4)


def test_the_noise_of_the_points_widens_the_band() -> None:
    quiet, noisy = (
        fit(series(ring_and_log, relative_error=error)).predict(32).step_seconds
        for error in (1e-4, 0.02)
    )
    assert quiet is not None
    assert noisy is not None
    assert noisy.low is not None
    assert quiet.low is not None
    assert noisy.value / noisy.low - 1 > 1.5 * (quiet.value / quiet.low - 1)


def test_two_sizes_keep_the_last_efficiency_and_span_what_else_fits() -> None:
    found = fit(series(ring_and_log, (1, 2)))
    assert found.ambiguous == ("ring", "log", "saturated")
    prediction = found.predict(8).step_seconds
    assert prediction is not None
    assert prediction.interval is not None
    overhead = ring_and_log(2) - 0.1
    ring, log = 0.1 + 2 * overhead * 7 / 8, 0.1 + 3 * overhead
    assert prediction.value == pytest.approx(ring_and_log(2))
    assert prediction.interval[0] < prediction.value < ring < log < prediction.interval[1]


def test_between_two_sizes_the_overhead_is_that_of_a_ring() -> None:
    times = {1: 0.1, 8: 0.17}
    prediction = fit(series(lambda n: times[n], (1, 8))).predict(4).step_seconds
    assert prediction is not None
    assert prediction.value == pytest.approx(0.1 + 0.07 * (3 / 4) / (7 / 8))


def test_named_terms_of_two_sizes_stay_those_that_were_named() -> None:
    found = fit(series(ring_and_log, (1, 2)), basis=("const", "ring", "log"))
    assert found.ambiguous == ("ring", "log")
    assert found.seconds(8) == pytest.approx(0.1 + 3 * (ring_and_log(2) - 0.1))


def test_both_laws_of_two_sizes_lie_in_bands_and_costs() -> None:
    """0.1 s alone, 0.2 s at 16: a ring of 0.1 × 16/15 s, or a tree of 0.025 s a doubling."""
    times = {1: 0.1, 16: 0.2}
    found = fit(series(lambda n: times[n], (1, 16)))
    costs = {term.name: found.cost(term).interval for term in found.terms}
    assert costs["ring"] == pytest.approx((0, 0.1 * 16 / 15))
    assert costs["log"] == pytest.approx((0, 0.025))
    for n in (2, 4, 8, 32, 64):
        step = found.predict(n).step_seconds
        assert step is not None
        assert step.contains(0.1 + 0.1 * 16 / 15 * (n - 1) / n)
        assert step.contains(0.1 + 0.025 * math.log2(n))


def test_noise_and_alternatives_add_up() -> None:
    """Each of the three laws keeps its own noise, which the band then spans."""
    found = fit(series(ring_and_log, (1, 2), relative_error=0.01), refits=300)
    assert found.draws.shape == (3, 100, 4)
    for column, draws in enumerate(found.draws, start=1):
        others = [term for term in (1, 2, 3) if term != column]
        assert (draws[:, others] == 0).all()
        assert np.ptp(draws[:, column]) > 0


def test_copies_that_exchange_nothing_have_no_law_of_collectives() -> None:
    copies = series(lambda n: 0.1 + 0.01 * (n - 1), implementation="independent")
    with pytest.raises(UsageError, match=r"exchanges nothing.*--basis const,lin"):
        fit(copies)
    assert fit(copies, basis=("const", "lin")).coefficients[1] == pytest.approx(0.01)


def test_precise_points_count_more() -> None:
    times = {1: 0.1, 2: 0.1, 4: 0.2}
    precise = series(lambda n: times[n], (1, 2, 4), relative_error=0.001)
    loose = replace(precise.points[2], step_seconds=log_mean(0.2, 0.5))
    law = fit(replace(precise, points=(*precise.points[:2], loose)), basis=("const",))
    assert law.coefficients[0] == pytest.approx(0.1, rel=1e-3)
    plain = fit(series(lambda n: times[n], (1, 2, 4)), basis=("const",))
    # Relative residuals: minimises 2 (c/0.1 - 1)² + (c/0.2 - 1)².
    assert plain.coefficients[0] == pytest.approx((2 / 0.1 + 1 / 0.2) / (2 / 0.01 + 1 / 0.04))


def test_equal_data_give_equal_bands() -> None:
    one, other = (fit(series(ring_and_log, relative_error=0.01)).predict(16) for _ in range(2))
    assert one == other


def test_the_interval_of_a_coefficient_covers_the_truth() -> None:
    """Nominal 90 %, 100 series whose points scatter by 1 %."""
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(100):
        factors = np.exp(generator.normal(0, 0.01, 4))
        times = dict(zip((1, 2, 4, 8), factors, strict=True))
        made = series(lambda n, t=times: ring_and_log(n) * t[n], relative_error=0.01)
        found = fit(made, refits=50)
        covered += found.cost(found.terms[0]).contains(0.1)
    assert 0.82 <= covered / 100 <= 1.0


def test_one_point_is_no_series() -> None:
    with pytest.raises(UsageError, match="at least two group sizes, got 1"):
        fit(series(ring_and_log, (1,)))


def test_node_terms_are_found_in_several_nodes() -> None:
    def seconds(n: int) -> float:
        nodes = math.ceil(n / 4)
        return 0.1 + 0.004 * (n - 1) / n + 0.03 * (nodes - 1) / nodes

    found = fit(series(seconds, (1, 2, 4, 8, 16, 32), replicas_per_node=4))
    costs = dict(zip((t.name for t in found.terms), found.coefficients, strict=True))
    assert costs["node-ring"] == pytest.approx(0.03, rel=1e-6)
    assert found.seconds(64) == pytest.approx(seconds(64), rel=1e-6)


LAUNCH, PER_SAMPLE, BATCH = 0.002, 0.001, 64


def seconds(n: int) -> float:
    return LAUNCH + PER_SAMPLE * BATCH / n + 0.003 * (n - 1) / n


def strong(*batches: int) -> Series:
    lone = (LoneStep(batch_size=b, step_seconds=log_mean(LAUNCH + PER_SAMPLE * b)) for b in batches)
    return series(
        seconds,
        (1, 2, 4),
        scaling="strong",
        batch_size=BATCH,
        items_per_step=BATCH,
        lone_steps=tuple(lone),
    )


def test_work_and_overhead_are_told_apart() -> None:
    found = fit(strong(32, 64, 128))
    assert [term.name for term in found.terms] == ["launch", "share", "ring", "log"]
    expected = [LAUNCH, PER_SAMPLE * BATCH, 0.003, 0.0]
    assert np.abs(found.coefficients - expected).max() < 1e-9
    throughput = found.predict(16).throughput
    assert throughput is not None
    assert throughput.value == pytest.approx(BATCH / seconds(16))


@pytest.mark.parametrize("batches", [(), (64,)])
def test_without_two_batches_of_one_replica_there_is_no_fit(batches: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="the step of one replica at two batch sizes"):
        fit(strong(*batches))


def test_a_batch_is_not_shared_among_more_replicas_than_it_has_samples() -> None:
    found = fit(series(seconds, (1, 2, 4, 32), scaling="strong", batch_size=BATCH,
                       items_per_step=BATCH, lone_steps=strong(32, 64).lone_steps))  # fmt: skip
    assert found.predict(64).kind == "extrapolated"
    assert "cannot share a batch of 64" in (found.predict(65).reason or "")


@pytest.mark.parametrize(
    ("group_size", "kind"),
    [
        *((1, "measured"), (3, "interpolated"), (8, "measured"), (9, "extrapolated")),
        *((32, "extrapolated"), (33, "refused"), (64, "refused"), (10_000, "refused")),
    ],
)
def test_kinds(group_size: int, kind: str) -> None:
    assert Reach(measured=(1, 2, 4, 8)).kind(group_size) == kind


def test_a_refusal_says_how_far_it_would_be() -> None:
    reason = Reach(measured=(1, 2)).refusal(16)
    assert reason is not None
    assert "16 is 8 × the largest measured group size, 2" in reason
    assert "below the smallest" in (Reach(measured=(8, 16)).refusal(4) or "")


def test_an_unmeasured_node_boundary_is_not_crossed() -> None:
    within = Reach(measured=(1, 8), replicas_per_node=8)
    assert within.kind(4) == "interpolated"
    assert "more than one node of 8" in (within.refusal(9) or "")
    assert Reach(measured=(1, 8, 16), replicas_per_node=8).kind(32) == "extrapolated"


def test_every_replica_needs_a_sample() -> None:
    reach = Reach(measured=(1, 8), most_replicas=16)
    assert reach.kind(16) == "extrapolated"
    assert "cannot share a batch of 16" in (reach.refusal(17) or "")


def test_distance_is_in_doublings() -> None:
    reach = Reach(measured=(1, 2, 4, 8))
    assert reach.octaves(32) == 2
    assert reach.octaves(3) == pytest.approx(math.log2(4 / 3))


def test_a_law_is_refused_where_it_misses_a_measured_step() -> None:
    times = dict(zip((1, 2, 4, 8, 16), (0.100, 0.101, 0.102, 0.103, 0.600), strict=True))
    found = fit(series(lambda n: times[n], times))
    for n in (12, 32, 64):
        prediction = found.predict(n)
        assert (prediction.kind, prediction.throughput, prediction.step_seconds) == (
            "refused",
            None,
            None,
        )
        assert "the law misses the measured step at 16 by -7" in (prediction.reason or "")
    assert found.predict(16).kind == "measured"


def test_a_miss_within_the_noise_of_its_point_is_none() -> None:
    """The last of five runs that scatter by 20 % is 15 % above the law of precise others."""
    times = dict(zip((1, 2, 4, 8), (0.1, 0.101, 0.102, 0.12), strict=True))
    loose = series(lambda n: times[n], times, relative_error=0.001)
    *precise, last = loose.points
    wide = replace(last, step_seconds=log_mean(0.12, 0.1))
    assert fit(replace(loose, points=(*precise, wide))).predict(16).kind == "extrapolated"
    narrow = replace(last, step_seconds=log_mean(0.12, 0.01))
    assert fit(replace(loose, points=(*precise, narrow))).predict(16).kind == "refused"


def test_no_prediction_lies_below_the_last_measured_step() -> None:
    """Without known noise, a last step 10 % above the others is no rounding; one of 1 % is kept."""
    for above, kind in ((1.10, "refused"), (1.01, "extrapolated")):
        times = dict.fromkeys((1, 2, 4, 8, 16), 0.1) | {16: 0.1 * above}
        found = fit(series(lambda n, t=times: t[n], times))
        prediction = found.predict(32)
        assert prediction.kind == kind
        if kind == "extrapolated":
            assert found.law(32) < times[16]
            assert prediction.step_seconds is not None
            assert prediction.step_seconds.value == times[16]
            assert prediction.step_seconds.contains(found.law(32))
        else:
            assert "shorter than the one measured at 16" in (prediction.reason or "")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.integers(2, 4))
def test_more_replicas_never_take_less_time_than_the_last_measured(
    times: list[float], factor: int
) -> None:
    sizes = [2**power for power in range(len(times))]
    by_size = dict(zip(sizes, times, strict=True))
    prediction = fit(series(lambda n: by_size[n], sizes), refits=0).predict(factor * sizes[-1])
    if prediction.kind != "refused":
        assert prediction.step_seconds is not None
        assert prediction.step_seconds.value >= times[-1]


def test_what_is_predicted_unasked() -> None:
    assert sizes_beyond((1, 2, 6)) == (12, 24)
