"""Least squares, curves and roots against scipy's, and against what can be worked out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.interpolate import PchipInterpolator
from scipy.optimize import nnls

from dpbench.analysis.numerics import MonotoneCurve, nonnegative_least_squares, root


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
