"""An estimate with both ends of its band, which may be lopsided: "4,800 (3,700–6,200)"."""

from __future__ import annotations

import math

from dpbench.analysis.estimate import Estimate
from dpbench.report.numbers import MOST_DIGITS, ROUNDING


def ranged(estimate: Estimate, *, scale: float = 1.0) -> str:
    """The value and both ends to the digits that they support; alone, three digits.

    The nearer end counts, as it must be told from the value, but by no more than one digit beyond
    what the farther one supports. An interval that is nothing is left out.
    """
    value = estimate.value * scale
    if estimate.interval is None:
        return written(value, _places(abs(value), 3))
    low, high = (end * scale for end in estimate.interval)
    nearer, farther = sorted((value - low, high - value))
    if farther <= ROUNDING * abs(value):
        return written(value, _places(abs(value), 3))
    places = _supported(farther)
    if nearer > 0:
        places = max(places, min(_supported(nearer), places + 1))
    if abs(value) > nearer:  # two digits of it at the least, however wide the band
        places = max(places, _places(abs(value), 2))
    places = min(places, _places(abs(value), MOST_DIGITS))
    return f"{written(value, places)} ({written(low, places)}–{written(high, places)})"


def written(value: float, places: int) -> str:
    """To so many decimals; below zero, to tens, hundreds, …; without the sign of a zero."""
    rounded = round(value, places)
    return f"{rounded + 0.0:,.{max(places, 0)}f}"


def _supported(half_width: float) -> int:
    """Decimals that show one significant digit of it, two if it starts with a 1."""
    exponent = math.floor(math.log10(half_width))
    return int(half_width / 10.0**exponent < 1.95) - exponent


def _places(size: float, digits: int) -> int:
    """Decimals that show so many significant digits."""
    return digits - 1 - math.floor(math.log10(size)) if size > 0 else digits - 1
