"""Non-negative least squares on relative residuals: deterministic, and never a negative time.

    minimise Σ ((T̂(n) - T(n)) / (T(n) · σ))²  with coefficients >= 0

Relative, because the noise of a time is; non-negative, because every term is a cost (with free
signs, 3 parameters through 3 points predict 29 % wrong at twice the data, see `holdout`).
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]
Columns = tuple[int, ...]

SAME_RESIDUAL = 1e-9
"""Relative: sets of terms that fit this equally cannot be told apart."""


def solve(matrix: Array, targets: Array, weights: Array, columns: Columns) -> tuple[Array, float]:
    """(coefficients, residual) with all but the given columns at zero.

    `matrix` (points, terms) has the terms at each point, `targets` what they shall sum up to,
    `weights` what a residual counts: 1 / (T σ).
    """
    coefficients = np.zeros(matrix.shape[1])
    if columns:
        scaled = matrix[:, columns] * weights[:, None]
        coefficients[list(columns)], _ = nnls(scaled, targets * weights)
    return coefficients, float(np.linalg.norm((matrix @ coefficients - targets) * weights))


def distinguishable(matrix: Array, targets: Array, weights: Array) -> tuple[Columns, ...]:
    """The largest sets of terms that the points can tell apart and that fit best.

    More than one where the points cannot say which terms are there: two group sizes do not tell
    bandwidth (ring) from latency (log), and both then go through the points.
    """
    scaled = matrix * weights[:, None]
    rank = int(np.linalg.matrix_rank(scaled))
    independent = [
        columns
        for columns in combinations(range(matrix.shape[1]), rank)
        if np.linalg.matrix_rank(scaled[:, columns]) == rank
    ]
    residuals = [solve(matrix, targets, weights, columns)[1] for columns in independent]
    limit = min(residuals, default=0.0) + SAME_RESIDUAL * float(np.linalg.norm(targets * weights))
    return tuple(c for c, r in zip(independent, residuals, strict=True) if r <= limit)
