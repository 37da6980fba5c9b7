"""The simulation against ranks that wait: what it predicts is what they take, within 2 %.

In virtual time, where only the order of events counts, the two must be equal.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from dpbench.analysis.comparisons.comparison import compare
from dpbench.analysis.comparisons.verdict import judge
from dpbench.analysis.metrics import METRICS
from dpbench.analysis.projection.stragglers import StragglerNoise, measured_noise, slowdowns
from tests.analysis.builders import throughputs
from tests.fabric.cases import (
    CASES,
    ONE_BUCKET_MB,
    Case,
    even,
    known_of,
    link,
    measured_seconds,
    outcome,
    predicted,
)
from tests.fabric.clocks import run_in_real_time, run_in_virtual_time
from tests.fabric.fabric import train

TOLERANCE = 0.02
STEPS = 4
ATTEMPTS = 5
"""Other processes can hold up who waits, never hurry him: in real time a prediction counts as
wrong where none of a few measurements agrees with it."""

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
Factors = list[list[float]]


@every_case
def test_the_step_is_predicted_exactly(case: Case) -> None:
    assert outcome(case, STEPS).error == pytest.approx(0, abs=1e-9)


@pytest.mark.alone
def test_the_step_is_predicted_in_real_time() -> None:
    errors: list[float] = []
    while not errors or min(map(abs, errors)) > TOLERANCE:
        assert len(errors) < ATTEMPTS, errors
        errors.append(outcome(CASES["a big classifier"], STEPS, run_in_real_time).error)


def test_another_network_is_noticed() -> None:
    case = CASES["bound by communication"]
    slower = replace(case, network=link(mebibytes_per_second=180))
    step = predicted(case, known_of(case, STEPS))
    assert measured_seconds(slower, STEPS) > step.step_seconds * (1 + 2 * TOLERANCE)


def test_the_best_bucket_size_is_the_predicted_one() -> None:
    """Latency speaks against small buckets, the wait for the first against large ones."""
    case = Case(model=even(20), network=link(latency_seconds=0.002, mebibytes_per_second=800))
    known = known_of(case, STEPS)
    cases = [replace(case, caps_mb=(cap,)) for cap in (*map(float, range(1, 16)), ONE_BUCKET_MB)]
    steps = [float(predicted(one, known).step_seconds) for one in cases]
    took = [measured_seconds(one, STEPS) for one in cases]
    assert 0 < int(np.argmin(steps)) < len(cases) - 1
    assert took[int(np.argmin(steps))] == pytest.approx(min(took))
    assert max(took) > 1.2 * min(took)


def noise_of(factors: Factors, steps: int) -> StragglerNoise:
    """As it is measured: steps without communication."""
    work = train(even(4), None, steps=steps, slowdowns=factors)
    return measured_noise([np.array(run_in_virtual_time(work))])


def noisy(ranks: int, steps: int, cv: float, seed: int) -> Factors:
    generator = np.random.default_rng(seed)
    factors: Factors = generator.lognormal(0.0, cv, (ranks, steps)).tolist()
    return factors


def test_a_slow_rank_is_found() -> None:
    """10 % on one of four ranks: a standard deviation between ranks of half of ln 1.1."""
    alike = noisy(4, 50, 0.02, seed=1)
    slow = [*alike[:3], [1.1 * factor for factor in alike[3]]]
    assert noise_of(slow, 50).rank_cv == pytest.approx(np.log(1.1) / 2, rel=0.15)
    assert noise_of(alike, 50).rank_cv < 0.01


def test_what_the_slowest_of_eight_costs_is_recovered_from_their_noise() -> None:
    ranks, steps, cv = 8, 200, 0.05
    case = Case(model=even(4), network=link(mebibytes_per_second=400), caps_mb=(1.0,))
    noise = noise_of(noisy(ranks, steps, cv, seed=1), steps)
    assert noise.residual_cv == pytest.approx(cv, rel=0.05)
    known = known_of(case, STEPS)
    slowest = slowdowns(noise, ranks, 10_000, np.random.default_rng(2))
    step = float(np.mean(predicted(case, known, slowdown=slowest).step_seconds))
    others = noisy(ranks, steps, cv, seed=3)
    work = train(case.model, case.network, steps=steps, caps_mb=(1.0,), slowdowns=others)
    took = fmean(map(fmean, run_in_virtual_time(work)))
    assert step == pytest.approx(took, rel=TOLERANCE / 2)
    assert predicted(case, known).step_seconds < (1 - 2 * TOLERANCE) * took


def speeds(slowdown: float, seed: int, runs: int = 5, steps: int = 10) -> list[float]:
    """Steps per second of so many runs, each a bit faster or slower than the others."""
    case = CASES["hidden behind computing"]
    found = []
    for [of_run] in noisy(runs, 1, 0.005, seed):
        factors = [[slowdown * of_run]] * 2
        work = train(case.model, case.network, steps=steps, slowdowns=factors)
        found.append(1 / fmean(map(fmean, run_in_virtual_time(work))))
    return found


@pytest.mark.parametrize(("slowdown", "outcome"), [(1.05, "regressed"), (1.0, "pass")])
def test_computing_that_is_five_percent_slower_is_a_regression(
    slowdown: float, outcome: str
) -> None:
    sides = throughputs({32: speeds(1.0, seed=1)}, {32: speeds(slowdown, seed=2)})
    assert judge(compare(sides, METRICS["images_per_second"]), 0.03).outcome == outcome
