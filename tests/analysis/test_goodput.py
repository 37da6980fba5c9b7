"""The worked row of Pollux's law, and what follows from it."""

from __future__ import annotations

import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.goodput import goodput, statistical_efficiency


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
