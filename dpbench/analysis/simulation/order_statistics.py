"""What the slowest of n costs on average: a group waits for it in every step."""

from __future__ import annotations

import numpy as np
from scipy.integrate import quad
from scipy.special import digamma, log_ndtr


def normal_maximum(count: int) -> float:
    """E[max] of n standard normals, by integration: 0.5642 at 2, 1.4236 at 8, 3.8516 at 10,000."""
    _require(count)

    def density(x: float) -> float:
        log = np.log(count) + (count - 1) * log_ndtr(x) - x * x / 2 - np.log(2 * np.pi) / 2
        return float(x * np.exp(log))

    # The maximum of up to 10^20 lies below 10; quad must be shown where the narrow peak is.
    total, _ = quad(density, -12.0, 12.0, points=np.arange(-8.0, 9.0).tolist(), limit=200)
    return float(total)


def exponential_maximum(count: int) -> float:
    """E[max] of n exponentials of mean 1, the harmonic number H_n: 2.7179 at 8."""
    _require(count)
    return float(digamma(count + 1) + np.euler_gamma)


def rare_delay(probability: float, cost: float, count: int) -> float:
    """d (1 - (1 - q)^n): what events that strike a replica's step with probability q cost all.

    `cost` d is what one adds to the step that it strikes; two in one step cost as much as one.
    """
    _require(count)
    if not 0 <= probability <= 1:
        raise ValueError(f"a probability of {probability}: expected 0 to 1")
    if probability == 1:
        return cost
    return float(-cost * np.expm1(count * np.log1p(-probability)))


def _require(count: int) -> None:
    if count < 1:
        raise ValueError(f"the maximum of {count} values: expected 1 or more")
