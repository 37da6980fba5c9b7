"""The error of a training whose numbers are no longer finite: nothing is learned after that."""

from __future__ import annotations

import math

from dpbench.errors import TrainingFailed


def require_finite(what: str, value: float, where: str) -> None:
    """Raise TrainingFailed, with the value and its place, unless it is finite."""
    if not math.isfinite(value):
        raise TrainingFailed(
            f"{what} is {value} in {where}; lower the learning rate, warm it up, or clip the "
            "gradients with a max norm"
        )
