"""Seeded series of step times for statistics to be tried on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

BURN_IN = 100


def correlated(
    rng: np.random.Generator, rows: int, length: int, phi: float = 0.0
) -> NDArray[np.float64]:
    """Rows of a stationary first-order autoregression with unit variance."""
    shocks = rng.normal(size=(rows, BURN_IN + length))
    series = lfilter([1.0], [1.0, -phi], shocks, axis=1)[:, BURN_IN:]
    return np.asarray(series * np.sqrt(1 - phi**2))
