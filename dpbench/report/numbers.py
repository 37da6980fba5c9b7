"""How an estimate is written: to the digits that its interval supports.

The half-width has one significant digit, or two if it starts with a 1: "1.72 ± 0.03",
"86.1 ± 1.4 %". In narrow columns "0.693(2)" stands for 0.693 ± 0.002.
"""

from __future__ import annotations

import math

from dpbench.analysis.estimate import Estimate

MISSING = "–"
MOST_DIGITS = 6
"""Significant digits of a value at the most, however small its interval."""

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def plus_minus(estimate: Estimate, *, scale: float = 1.0, plain_decimals: int = 3) -> str:
    """Writes "1.72 ± 0.03"; "1.9 (0.8–4.4)" if the interval is far from symmetric."""
    value = estimate.value * scale
    if estimate.basis == "baseline":
        return f"{value:.0f}"
    if estimate.interval is None or estimate.half_width is None:
        return f"{value:,.{plain_decimals}f}"
    low, high = (end * scale for end in estimate.interval)
    if _is_lopsided(value, low, high):
        places = decimals(min(value - low, high - value), value)
        return f"{value:,.{places}f} ({low:,.{places}f}–{high:,.{places}f})"
    half_width = estimate.half_width * scale
    if half_width == 0:
        return f"{value:,.{plain_decimals}f} ± 0"
    places = decimals(half_width, value)
    return f"{value:,.{places}f} ± {half_width:,.{places}f}"


def compact(estimate: Estimate) -> str:
    """Writes "0.693(2)" for 0.693 ± 0.002, "-1.2(3)e-5" for what is small; "0.6931" if no interval.

    Of an interval that is wider than the value is large, "0.1(1.2)".
    """
    value, half_width = estimate.value, estimate.half_width
    if half_width is None:
        return f"{value:.4g}"
    largest = max(abs(value), half_width)
    if 0 < largest < 1e-3:
        exponent = math.floor(math.log10(largest))
        return f"{_in_parentheses(value / 10**exponent, half_width / 10**exponent)}e{exponent}"
    return _in_parentheses(value, half_width)


def time_plus_minus(estimate: Estimate) -> str:
    """Writes seconds in the unit that fits: "1.23 ± 0.04 ms"."""
    largest = max(abs(estimate.value), estimate.half_width or 0.0)
    size, unit = next(((s, u) for s, u in _TIME_UNITS if largest >= s), _TIME_UNITS[-1])
    value = estimate.value / size
    plain = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{plus_minus(estimate, scale=1 / size, plain_decimals=min(plain, 3))} {unit}"


def decimals(half_width: float, value: float) -> int:
    """Decimals that show one significant digit of a half-width, two if it starts with a 1."""
    if half_width <= 0:
        return 3
    exponent = math.floor(math.log10(half_width))
    supported = (1 if half_width / 10**exponent < 1.95 else 0) - exponent
    integer_digits = math.floor(math.log10(abs(value))) + 1 if value else 1
    return max(0, min(supported, MOST_DIGITS - integer_digits))


def _in_parentheses(value: float, half_width: float) -> str:
    places = decimals(half_width, value) if half_width else 4
    uncertain = round(half_width * 10**places)
    if uncertain >= 100 and places:
        return f"{value:.{places}f}({half_width:.{places}f})"
    return f"{value:.{places}f}({uncertain})"


def _is_lopsided(value: float, low: float, high: float) -> bool:
    below, above = value - low, high - value
    return above > 1.25 * below and above > 0.2 * abs(value)
