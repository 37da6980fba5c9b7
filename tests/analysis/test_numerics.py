"""Least squares, curves and roots against scipy's, and against what can be worked out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special
from scipy.interpolate import PchipInterpolator
from scipy.optimize import nnls

from dpbench.analysis.numerics import (
    MonotoneCurve,
    chi_square_quantile_above,
    noncentral_t_below,
    noncentrality,
    nonnegative_least_squares,
    normal_quantile,
    root,
    t_below,
    t_quantile,
)

FREEDOMS = np.array([1.0, 1.5, 2.0, 3.0, 4.7, 10.0, 29.0, 100.0, 1e3, 1e5])


@pytest.mark.parametrize("t", [-50.0, -2.0, -1e-3, 0.0, 0.01, 0.5, 1.96, 12.7, 1e4])
def test_t_probabilities_are_those_of_scipy(t: float) -> None:
    assert t_below(FREEDOMS, t) == pytest.approx(special.stdtr(FREEDOMS, t), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("t", [-1e6, -3.0, 1e-8, 0.2])
def test_with_one_degree_of_freedom_t_probabilities_are_those_of_cauchy(t: float) -> None:
    assert t_below(1.0, t) == pytest.approx(0.5 + math.atan(t) / math.pi, rel=1e-10)


@pytest.mark.parametrize("probability", [0.5, 0.6, 0.8, 0.95, 0.975, 0.995, 0.9999])
def test_t_quantiles_are_those_of_scipy(probability: float) -> None:
    theirs = special.stdtrit(FREEDOMS, probability)
    assert t_quantile(FREEDOMS, probability) == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_without_an_end_a_t_distribution_is_normal_and_of_nothing_is_nothing() -> None:
    assert t_quantile(math.inf, 0.975) == pytest.approx(1.959963984540054, rel=1e-14)
    assert t_below([math.inf, math.nan, 4.0, 4.0], [1.96, 1.0, math.inf, -math.inf]) == (
        pytest.approx([0.9750021, math.nan, 1.0, 0.0], rel=1e-6, nan_ok=True)
    )
    assert math.isnan(t_quantile(math.nan, 0.9))
    with pytest.raises(ValueError, match=r"got probability 1.5, expected 0.5 to below 1"):
        t_quantile(3.0, 1.5)


@pytest.mark.parametrize("freedom", [1.0, 2.5, 4.0, 9.0, 40.0, 1000.0])
@pytest.mark.parametrize("tail", [0.005, 0.025, 0.5, 0.9, 0.975])
def test_chi_square_quantiles_are_those_of_scipy(freedom: float, tail: float) -> None:
    theirs = special.chdtri(freedom, tail)
    assert chi_square_quantile_above(freedom, tail) == pytest.approx(theirs, rel=1e-10)


@pytest.mark.parametrize("freedom", [1.0, 2.0, 3.3, 8.0, 58.0, 2e4])
@pytest.mark.parametrize(("alpha", "power"), [(0.05, 0.8), (0.01, 0.9), (0.05, 0.5)])
def test_noncentralities_are_those_of_scipy(freedom: float, alpha: float, power: float) -> None:
    """scipy's inverse is good to six digits; both are held against its distribution too."""
    critical = special.stdtrit(freedom, 1 - alpha)
    found = float(noncentrality(freedom, 1 - power, critical))
    assert found == pytest.approx(special.nctdtrinc(freedom, 1 - power, critical), rel=1e-5)
    assert special.nctdtr(freedom, found, critical) == pytest.approx(1 - power, rel=1e-7)


@pytest.mark.parametrize("freedom", [1.0, 4.0, 8.0, 53.3, 1e13])
@pytest.mark.parametrize("noncentrality", [0.0, 0.7, 3.0, 12.0])
def test_the_noncentral_distribution_is_that_of_scipy(freedom: float, noncentrality: float) -> None:
    for t in (0.5, 2.1, 6.0):
        expected = float(special.nctdtr(min(freedom, 1e9), noncentrality, t))
        assert noncentral_t_below(freedom, noncentrality, t) == pytest.approx(expected, abs=1e-6)


def test_normal_quantiles_are_those_of_scipy() -> None:
    probabilities = np.array([0.0, 1e-300, 1e-6, 0.3, 0.5, 0.975, 1 - 1e-12, 1.0])
    assert normal_quantile(probabilities) == pytest.approx(special.ndtri(probabilities), rel=1e-13)
    assert math.isnan(normal_quantile(2.0))


@pytest.mark.parametrize("seed", range(30))
def test_coefficients_are_those_of_scipy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, columns = int(generator.integers(2, 12)), int(generator.integers(1, 6))
    matrix = generator.normal(size=(rows, columns)) * 10.0 ** generator.integers(-6, 6, columns)
    targets = generator.normal(size=rows)
    theirs, distance = nnls(matrix, targets)
    ours = nonnegative_least_squares(matrix, targets)
    assert (ours >= 0).all()
    assert np.linalg.norm(matrix @ ours - targets) == pytest.approx(distance, rel=1e-9, abs=1e-10)
    if rows >= columns:
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-12)


def test_a_column_that_would_be_negative_is_left_out() -> None:
    matrix = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    assert nonnegative_least_squares(matrix, [3.0, 2.0, 1.0]) == pytest.approx([2.0, 0.0])
    assert nonnegative_least_squares(matrix, [-1.0, -1.0, -1.0]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("seed", range(10))
def test_curves_are_those_of_scipy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    places = np.cumsum(generator.uniform(0.1, 2, int(generator.integers(2, 9))))
    values = generator.normal(size=len(places))
    at = np.linspace(places[0] - 0.5, places[-1] + 0.5, 101)
    ours, theirs = MonotoneCurve(places, values), PchipInterpolator(places, values)
    assert ours(at) == pytest.approx(theirs(at), rel=1e-10, abs=1e-12)
    assert ours(float(at[50])).item() == pytest.approx(theirs(at[50]).item())


def test_a_root_is_found_to_its_tolerance() -> None:
    calls = []

    def cubic(x: float) -> float:
        calls.append(x)
        return x**3 - 2

    assert root(cubic, 0.0, 10.0, tolerance=1e-9) == pytest.approx(2 ** (1 / 3), abs=1e-9)
    assert len(calls) < 30
    assert root(lambda x: math.cos(x), 0.0, 3.0, tolerance=1e-12) == pytest.approx(math.pi / 2)
    assert root(lambda x: x, 0.0, 1.0, tolerance=1e-3) == 0.0
    with pytest.raises(ValueError, match="expected opposite signs"):
        root(lambda x: x + 1, 0.0, 1.0, tolerance=1e-3)
