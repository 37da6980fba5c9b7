"""Points redrawn from their noise: what a parametric bootstrap refits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpbench.analysis.estimate import LogMean

Array = NDArray[np.float64]

SEED = 20_250_101
"""Equal data give equal bands."""
LARGEST_LOG = 50.0
"""A t distribution with one degree of freedom draws numbers that no exponential holds. They lie
far outside the quantiles that a band is made of."""
LAW_ERROR = 1e-3
"""No law is better than this: runs that happen to be equal do not outweigh all others."""


def redrawn(values: Sequence[LogMean], refits: int) -> Array:
    """(1 + refits, values): as they are, then each drawn from its t distribution, on the logarithm.

    A value whose spread is not known stays as it is; where none is known, there are no refits.
    """
    if all(value.squared_error is None for value in values):
        refits = 0
    generator = np.random.default_rng(SEED)
    draws = np.tile([value.value for value in values], (1 + refits, 1))
    for column, value in enumerate(values):
        if value.squared_error is not None:
            errors = generator.standard_t(value.degrees_of_freedom, refits)
            logs = np.sqrt(value.squared_error) * errors
            draws[1:, column] *= np.exp(np.clip(logs, -LARGEST_LOG, LARGEST_LOG))
    return draws


def relative_errors(values: Sequence[LogMean]) -> Array:
    """What weighs the values against each other: their standard errors where all are known, else
    equal ones."""
    squared = [value.squared_error for value in values]
    known = [error for error in squared if error is not None]
    if len(known) < len(squared):
        return np.ones(len(squared))
    return np.hypot(np.sqrt(known), LAW_ERROR)
