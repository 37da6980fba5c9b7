"""How an estimate is written: to the digits that its interval supports, in one notation.

An interval that is about symmetric is "1.72 ± 0.03", any other "1.9 (0.8–4.4)". Its half-width has
one significant digit, or, where there is room, two if it starts with a 1: "86.1 ± 1.4 %".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.report.table import MISSING
from dpbench.units import CLOCK_SECONDS, GIGA

MOST_DIGITS = 5
"""Significant digits of a value at the most, however small its interval."""
ROUNDING = 1e-6
"""An interval this much smaller than its value is that of equal values."""
NOISY = "too noisy"
"""Text of a speed whose interval says nothing, see `Estimate.is_too_noisy`."""
LOPSIDED = 1.25
"""If one side of an interval is this many times the other, both ends are written."""
TIGHT = 0.1
"""Relative; an interval that reaches no further is written with ±, of its larger side."""
_NUMBER = re.compile(r"[\d,.]+")
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def plus_minus(
    estimate: Estimate,
    *,
    scale: float = 1.0,
    plain_decimals: int = 3,
    two_after_one: bool = True,
) -> str:
    """Writes "1.72 ± 0.03"; "1.9 (0.8–4.4)" if the interval is lopsided; alone, "1.720"."""
    value = estimate.value * scale
    if estimate.basis == "baseline":
        return f"{value:.0f}"
    if estimate.interval is None or estimate.half_width is None:
        return _rounded(value, plain_decimals)
    half_width = estimate.half_width * scale
    if half_width <= ROUNDING * abs(value):
        return f"{value:,.{plain_decimals}f} ± 0"
    if not _is_lopsided(estimate):
        places = decimals(half_width, value, two_after_one=two_after_one)
        return f"{_rounded(value, places)} ± {half_width:,.{places}f}"
    low, high = (end * scale for end in estimate.interval)
    places = max(_supported((high - low) / 2), _places(abs(value), 2))
    below, middle, above = (_rounded(number, places) for number in (low, value, high))
    return f"{middle} ({(' to ' if '-' in below else '–').join((below, above))})"


def percentage(estimate: Estimate | None) -> str:
    """Writes a share as "86.1 ± 1.4 %"."""
    return or_missing(estimate, lambda e: f"{plus_minus(e, scale=100, plain_decimals=1)} %")


def or_missing(estimate: Estimate | None, write: Callable[[Estimate], str]) -> str:
    return MISSING if estimate is None else write(estimate)


def significant(estimate: Estimate) -> str:
    """Writes "0.693 ± 0.002", "-1.2e-5 ± 0.3e-5" for small ones; alone, "0.6931"."""
    value, half_width = estimate.value, estimate.half_width
    if half_width is None:
        return f"{value:.4g}"
    largest = max(abs(value), half_width)
    if 0 < largest < 1e-3:
        exponent = math.floor(math.log10(largest))
        number = plus_minus(estimate, scale=10.0**-exponent, two_after_one=False)
        return _NUMBER.sub(rf"\g<0>e{exponent}", number)
    return plus_minus(estimate, plain_decimals=4, two_after_one=False)


def gigabytes(estimate: Estimate) -> str:
    """Writes bytes per second in GB/s, without the unit: "1.31 ± 0.07"."""
    if estimate.interval is None:
        return gigabytes_alone(estimate)
    return significant(estimate.scaled(1 / GIGA, unit="GB/s"))


def gigabytes_alone(estimate: Estimate) -> str:
    """Writes bytes per second in GB/s to three digits, without the interval."""
    value = estimate.value / GIGA
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit that fits a time, of s, ms and µs: its size in seconds, and its name."""
    return next((unit for unit in _TIME_UNITS if seconds >= unit[0]), _TIME_UNITS[-1])


def time_text(estimate: Estimate) -> str:
    """Writes seconds in the unit that fits: "1.23 ± 0.04 ms"; alone, "1.23 ms"."""
    reach = 0.0 if _is_lopsided(estimate) else estimate.half_width or 0.0
    largest = max(abs(estimate.value), reach)
    if largest < CLOCK_SECONDS:
        return "0 µs"
    size, unit = time_unit(largest)
    if estimate.half_width is None:
        value = estimate.value / size
        return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:,.0f} {unit}"
    return f"{plus_minus(estimate, scale=1 / size, two_after_one=False)} {unit}"


def decimals(half_width: float, value: float, *, two_after_one: bool = True) -> int:
    """Decimals that show one significant digit of a half-width, two if it starts with a 1."""
    if half_width <= 0:
        return 3
    supported = _supported(half_width, two_after_one=two_after_one)
    return max(0, min(supported, _places(abs(value), MOST_DIGITS)))


def quantity(estimate: Estimate | None, *, header: str = "") -> str:
    """Writes "1.23 ± 0.04 ms", "297 MiB", "86 ± 2 %", "1,337 ± 15 images/s"; a rate whose
    unit stands in the header of its column goes without; "too noisy" as in other tables."""
    if estimate is None:
        return MISSING
    if estimate.unit == "s":
        return time_text(estimate)
    if estimate.unit == "B":
        return units.bytes_binary(estimate.value)
    if estimate.unit == "of linear":
        return percentage(estimate)
    if estimate.unit.endswith("/s"):
        if estimate.is_too_noisy:
            return NOISY
        number = plus_minus(estimate, plain_decimals=1)
        return number if f"({estimate.unit})" in header else f"{number} {estimate.unit}"
    return significant(estimate)


def rate_unit(seen: Iterable[str]) -> str:
    """The unit of a column for its header, " (images/s)"; "" unless all are one rate."""
    found = {*seen}
    return f" ({found.pop()})" if len(found) == 1 and min(found).endswith("/s") else ""


def sample_sizes(repetitions: tuple[int, int]) -> str:
    """Writes "5"; "5, 2" where baseline and candidate differ."""
    return ", ".join(map(str, dict.fromkeys(repetitions)))


def _is_lopsided(estimate: Estimate) -> bool:
    """Whether ± would say something else than the two ends."""
    nearer, farther = sorted(estimate.sides)
    return farther > max(LOPSIDED * nearer, TIGHT * abs(estimate.value))


def _rounded(value: float, places: int) -> str:
    """Rounds to so many decimals, to tens, hundreds, … below zero; writes no sign of a zero."""
    return f"{round(value, places):z,.{max(places, 0)}f}"


def _supported(half_width: float, *, two_after_one: bool = True) -> int:
    """Decimals that show one significant digit of it, two if it starts with a 1."""
    exponent = math.floor(math.log10(half_width))
    return int(two_after_one and half_width / 10.0**exponent < 1.95) - exponent


def _places(size: float, digits: int) -> int:
    """Decimals that show so many significant digits."""
    return digits - 1 - math.floor(math.log10(size)) if size > 0 else digits - 1
