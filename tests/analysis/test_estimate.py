"""Intervals against numbers worked by hand, and their coverage by simulation."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from dpbench.analysis.change import change_between
from dpbench.analysis.estimate import MIN_PAIRS, Estimate, geometric_mean, mean, product


def test_throughput_of_two_runs_is_their_geometric_mean() -> None:
    # ln 100 and ln 400: mean ln 200, sd = ln(4)/sqrt(2), standard error = ln(4)/2.
    estimate = geometric_mean([100.0, 400.0], unit="images/s")
    assert estimate.value == pytest.approx(200.0)
    reach = 12.7062 * math.log(4) / 2
    assert estimate.interval == pytest.approx(
        (200 * math.exp(-reach), 200 * math.exp(reach)), rel=1e-4
    )
    assert (estimate.sample_size, estimate.basis) == (2, "repetitions")


def covering(value: float, estimates: Iterable[Estimate]) -> int:
    return sum(one.ends[0] <= value <= one.ends[1] for one in estimates)


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_intervals_between_runs_cover_what_they_say(runs: int) -> None:
    """Speeds of 180 and 100 with 3 % noise, 2,000 sweeps; nominal 95 %."""
    rng = np.random.default_rng(runs)
    sweeps = 2000
    current = (180 * np.exp(rng.normal(0, 0.03, (sweeps, runs)))).tolist()
    baseline = (100 * np.exp(rng.normal(0, 0.03, (sweeps, runs)))).tolist()

    def cover(ran_in_turn: bool) -> int:
        changes = (
            change_between(dict(enumerate(a)), dict(enumerate(b)), ran_in_turn=ran_in_turn)
            for a, b in zip(baseline, current, strict=True)
        )
        return covering(1.8, (one.estimate for one in changes if one))

    covered = {
        "runs": covering(180, (geometric_mean(a, unit="/s") for a in current)),
        "mean": covering(math.log(180), (mean(np.log(a).tolist(), unit="") for a in current)),
        "Welch": cover(ran_in_turn=False),
        "paired": cover(ran_in_turn=True),
    }
    # Welch's is conservative with few runs: 0.972 at 3, which are not paired.
    most = {"runs": 0.97, "mean": 0.97, "Welch": 0.98, "paired": 0.97}
    if runs < MIN_PAIRS:
        most["paired"] = most["Welch"]
    assert all(0.93 <= covered[name] / sweeps <= most[name] for name in covered), covered


@pytest.mark.parametrize(
    "changes",
    [{"value": math.nan}, {"low": 1.0}, {"low": 0.0, "high": math.inf}, {"sample_size": 0}],
)
def test_what_is_no_estimate_is_refused(changes: dict[str, float]) -> None:
    plain = {"value": 1.0, "unit": "s", "sample_size": 1, "basis": "single value"}
    with pytest.raises(ValueError, match="an estimate"):
        Estimate(**{**plain, **changes})  # type: ignore[arg-type]


def estimate(value: float, low: float, high: float, size: int = 5) -> Estimate:
    return Estimate(
        value=value, low=low, high=high, unit="a", sample_size=size, basis="repetitions"
    )


def test_relative_errors_add_in_squares() -> None:
    # 10 ± 3 times 10 ± 4: 100, with sides of 30 and 40, so ± 50.
    found = product(estimate(10, 7, 13), estimate(10, 6, 14, size=3), unit="b")
    assert (found.value, found.low, found.high) == (100, 50, 150)
    assert (found.unit, found.sample_size, found.basis) == ("b", 3, "repetitions")


def test_a_falling_function_exchanges_the_ends() -> None:
    rate = Estimate(value=4.0, low=2.0, high=8.0, unit="1/s", sample_size=3, basis="repetitions")
    found = rate.mapped(lambda value: 1 / value, unit="s")
    assert (found.low, found.value, found.high, found.unit) == (0.125, 0.25, 0.5, "s")
