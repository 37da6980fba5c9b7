"""The gradient noise scale of gradients whose true one is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.losses.noise_scale import (
    covariance_and_square,
    goodput,
    noise_scale,
    ratio_of_means,
    statistical_efficiency,
)
from dpbench.records.trial import GradientNorms, TrialRecord
from tests.analysis.builders import rank, record, trial, window


def gradients(
    steps: int, shards: Sequence[int], scale: float, seed: int, dimensions: int = 200
) -> list[GradientNorms]:
    """Norms by rank of gradients with |G| = 1 and tr(Sigma) = `scale`, unevenly over dimensions."""
    rng = np.random.default_rng(seed)
    variances = np.geomspace(1.0, 0.2, dimensions)
    variances *= scale / variances.sum()
    sizes = np.array(shards)
    noise = rng.normal(size=(steps, len(shards), dimensions))
    local = dimensions**-0.5 + noise * np.sqrt(variances / sizes[:, np.newaxis])
    whole = np.einsum("r,srd->sd", sizes / sizes.sum(), local)
    return [
        norms((local[:, number] ** 2).sum(1), (whole**2).sum(1), size, int(sizes.sum()))
        for number, size in enumerate(shards)
    ]


def norms(
    local: NDArray[np.float64] | Sequence[float],
    whole: NDArray[np.float64] | Sequence[float],
    local_samples: int,
    global_samples: int,
) -> GradientNorms:
    return GradientNorms(
        local_squared=tuple(map(float, local)),
        global_squared=tuple(map(float, whole)),
        local_samples=local_samples,
        global_samples=global_samples,
    )


def run(by_rank: Sequence[GradientNorms | None]) -> TrialRecord:
    ranks = [rank(n, window([0.1], 4), gradient_norms=found) for n, found in enumerate(by_rank)]
    return record(trial(group_size=len(ranks)), ranks)


def test_two_batch_sizes_tell_the_gradient_and_its_noise() -> None:
    """|G|² = 2 and tr(Sigma) = 12: 2 + 12/4 = 5 for 4 samples, 2 + 12/8 = 3.5 for 8."""
    found = covariance_and_square([norms([4.0], [3.5], 4, 8), norms([6.0], [3.5], 4, 8)])
    assert found == pytest.approx(np.array([[12.0], [2.0]]))


def test_uneven_shards_are_weighted_by_their_samples() -> None:
    """2 + 12/2 = 8 for 2 samples, 2 + 12/6 = 4 for 6; 3.5 for all 8."""
    found = covariance_and_square([norms([8.0], [3.5], 2, 8), norms([4.0], [3.5], 6, 8)])
    assert found == pytest.approx(np.array([[12.0], [2.0]]))


@pytest.mark.parametrize("shards", [[32] * 8, [24, 40] * 4])
def test_a_scale_of_2497_is_found_from_400_steps_of_8_times_32(shards: list[int]) -> None:
    found = noise_scale([run(gradients(400, shards, 2497.0, seed=0, dimensions=2000))])
    assert found is not None
    assert found.samples is not None
    assert found.samples.value == pytest.approx(2497, rel=0.05)
    assert found.samples.contains(2497)
    assert (found.samples.unit, found.samples.sample_size) == ("images", 400)
    assert found.reason is None


def test_the_interval_covers_the_true_scale() -> None:
    # Ten batches, two ranks of 32: |G|² is plain to see in nearly all runs.
    runs = [covariance_and_square(gradients(10, [32, 32], 64.0, seed, 50)) for seed in range(1000)]
    intervals = [ratio_of_means(*one) for one in runs]
    bounded = [(low, high) for low, high in intervals if high is not None]
    assert len(bounded) >= 980
    covered = np.mean([low <= 64.0 <= high for low, high in bounded])
    assert 0.93 <= covered <= 0.97


def test_fiellers_interval_of_a_nearly_exact_denominator_is_that_of_the_mean() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])
    # 2 ± 4.303 x 1 / √3, halved.
    reach = 4.3027 / math.sqrt(3) / 2
    assert ratio_of_means(x, y) == pytest.approx((1 - reach, 1 + reach), abs=1e-4)


def test_repetitions_do_not_make_more_batches() -> None:
    same = run(gradients(20, [32, 32], 64.0, seed=3))
    assert noise_scale([same] * 5) == noise_scale([same])


def test_a_gradient_that_its_noise_hides_gives_a_lower_bound_and_a_reason() -> None:
    found = noise_scale([run(gradients(10, [4, 4], 1e5, seed=0))])
    assert found is not None
    assert found.samples is None
    assert found.at_least is not None
    assert 0 < found.at_least < 1e5
    assert found.reason == (
        "10 global batches leave the gradient in its noise: at least "
        f"{found.at_least:,.3g} samples; raise --noise-scale"
    )


@pytest.mark.parametrize("scale", [256.0, 640.0, 6400.0])
def test_lower_bounds_hold_near_the_limit_of_what_can_be_seen(scale: float) -> None:
    """20 batches of twice 32: nominally 97.5 % of one-sided bounds lie below the truth."""
    found = [noise_scale([run(gradients(20, [32, 32], scale, seed, 50))]) for seed in range(300)]
    bounds = [one.at_least for one in found if one is not None and one.at_least is not None]
    assert len(bounds) >= 200
    assert np.mean([bound <= scale for bound in bounds]) >= 0.95


def test_what_is_shown_is_not_far_too_small() -> None:
    """Near the limit a value is seen by luck only, and is then up to a factor of 3 too small."""
    found = [noise_scale([run(gradients(20, [32, 32], 640.0, seed, 50))]) for seed in range(300)]
    assert sum(one is not None and one.samples is not None for one in found) <= 6


def test_the_lower_bound_is_where_the_denominator_is_as_large_as_it_may_be() -> None:
    """2 exactly ÷ 0.5 ± 1: the denominator may be up to 1.5, and may be 0."""
    reach = 1 / 12.7062  # t(1) standard errors of 0.5 ± reach are 1
    low, high = ratio_of_means(np.array([2.0, 2.0]), np.array([0.5 + reach, 0.5 - reach]))
    assert low == pytest.approx(2 / 1.5, rel=1e-4)
    assert high is None


def test_few_batches_and_broken_gradients_have_their_reason() -> None:
    few = noise_scale([run(gradients(4, [32, 32], 64.0, seed=0))])
    assert few is not None
    assert few.reason == "--noise-scale got 4 global batches, expected at least 5"
    broken = noise_scale([run([norms([math.nan] * 5, [1.0] * 5, 2, 4)] * 2)])
    assert broken is not None
    assert broken.reason == "gradients are not finite"
    equal = noise_scale([run([norms([1.0] * 5, [1.0] * 5, 2, 4)] * 2)])
    assert equal is not None
    assert equal.reason == "the gradients of the ranks do not differ by more than rounding"


def test_without_norms_of_every_rank_nothing_was_measured() -> None:
    whole = gradients(5, [2, 2], 64.0, seed=0)
    assert noise_scale([run([None, None])]) is None
    assert noise_scale([run([whole[0], None])]) is None
    assert noise_scale([run(whole[:1])]) is None
    assert noise_scale([]) is None


def scale(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(
        value=value, low=low, high=high, unit="images", sample_size=20, basis="step batches"
    )


@pytest.mark.parametrize(("group", "expected"), [(1, 1.0), (8, 0.825), (32, 0.516), (256, 0.115)])
def test_efficiency_at_a_critical_batch_of_8192_and_256_samples_a_replica(
    group: int, expected: float
) -> None:
    found = statistical_efficiency(scale(8192.0), 256 * group, base_batch_size=256)
    assert found.value == pytest.approx(expected, abs=5e-4)


def test_a_larger_noise_scale_makes_large_batches_worth_more() -> None:
    # (100 + 50) / (100 + 200), ends at (50 + 50) / (50 + 200) and (400 + 50) / (400 + 200).
    found = statistical_efficiency(scale(100.0, 50.0, 400.0), 200, base_batch_size=50)
    assert (found.value, found.low, found.high) == (0.5, 0.4, 0.75)
    assert (found.sample_size, found.basis) == (20, "step batches")
    smaller = statistical_efficiency(scale(100.0, 50.0, 400.0), 50, base_batch_size=200)
    assert (smaller.value, smaller.low, smaller.high) == pytest.approx((2.0, 4 / 3, 2.5))


def test_goodput_is_throughput_times_efficiency() -> None:
    speed = Estimate(
        value=1000.0, low=970.0, high=1030.0, unit="images/s", sample_size=5, basis="repetitions"
    )
    # ± 30 and ± 40 at an efficiency of 0.5.
    half = Estimate(value=0.5, low=0.46, high=0.54, unit="×", sample_size=20, basis="step batches")
    found = goodput(speed, half)
    assert found.value == 500.0
    assert found.half_width == pytest.approx((15**2 + 40**2) ** 0.5)
    assert (found.unit, found.sample_size, found.basis) == ("images/s", 5, "step batches")
