"""What the slowest of n costs on average: a group waits for it in every step."""

from __future__ import annotations

import numpy as np


def rare_delay(probability: float, cost: float, count: int) -> float:
    """d (1 - (1 - q)^n): what events that strike a replica's step with probability q cost all.

    `cost` d is what one adds to the step that it strikes; two in one step cost as much as one.
    """
    if count < 1:
        raise ValueError(f"the maximum of {count} values: expected 1 or more")
    if not 0 <= probability <= 1:
        raise ValueError(f"a probability of {probability}: expected 0 to 1")
    if probability == 1:
        return cost
    return float(-cost * np.expm1(count * np.log1p(-probability)))
