"""The error of a training whose numbers are no longer finite."""

from __future__ import annotations

import math

from dpbench.errors import DpbenchError


class Diverged(DpbenchError):
    """A loss, gradient or parameter is NaN or infinite: nothing is learned after that."""


def require_finite(what: str, value: float, where: str) -> None:
    """Raise Diverged, with the value and its place, unless it is finite."""
    if not math.isfinite(value):
        raise Diverged(
            f"{what} is {value} in {where}; lower the learning rate, warm it up, or clip the "
            "gradients with a max norm"
        )
