"""Coefficients, and how they scatter when the points are redrawn from their noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpbench.analysis.laws.least_squares import distinguishable, solve

Array = NDArray[np.float64]

REFITS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Refits:
    """The terms of a law, fitted many times."""

    coefficients: Array
    """(terms): fitted to the points as they are."""
    draws: Array
    """(sets of terms, refits, terms): more than one set where they fit equally well."""
    ambiguous: tuple[int, ...]
    """Columns of terms of which the points only say that one or the other is there."""


def refit(
    matrix: Array,
    targets: Array,
    seconds: Array,
    relative_errors: Array,
    *,
    far: Array,
) -> Refits:
    """Fits the points and every redrawing of them.

    `matrix` (points, terms) has the terms; `targets` (1 + refits, points) what they sum up to,
    the points as they are first; `seconds`, of the same shape, the step times that make residuals
    relative. Where several sets of terms fit equally, each takes its part of the refits, and the
    coefficients are those with the longest step at `far` (terms): reality is slower more often than
    faster.
    """
    weights = 1 / (seconds * relative_errors)
    sets = distinguishable(matrix, targets[0], weights[0])
    solutions = np.stack([solve(matrix, targets[0], weights[0], s)[0] for s in sets])
    each = (len(targets) - 1) // len(sets)
    draws = [
        solve(matrix, targets[row], weights[row], columns)[0]
        for place, columns in enumerate(sets)
        for row in range(1 + place * each, 1 + (place + 1) * each)
    ]
    used = solutions > 0
    return Refits(
        coefficients=solutions[np.argmax(solutions @ far)],
        draws=np.stack(draws).reshape(len(sets), each, -1) if draws else solutions[:, None],
        ambiguous=tuple(np.flatnonzero(used.any(axis=0) & ~used.all(axis=0))),
    )
