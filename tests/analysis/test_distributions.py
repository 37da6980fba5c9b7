"""Our probabilities and quantiles are those of scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from dpbench.analysis.distributions import (
    chi_square_quantile_above,
    noncentrality,
    normal_quantile,
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


def test_normal_quantiles_are_those_of_scipy() -> None:
    probabilities = np.array([0.0, 1e-300, 1e-6, 0.3, 0.5, 0.975, 1 - 1e-12, 1.0])
    assert normal_quantile(probabilities) == pytest.approx(special.ndtri(probabilities), rel=1e-13)
    assert math.isnan(normal_quantile(2.0))
