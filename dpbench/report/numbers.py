"""How an estimate is written: to the digits that its interval supports.

The half-width has one significant digit, or, where there is room, two if it starts with a 1:
"1.72 ± 0.03", "86.1 ± 1.4 %". In narrow columns "0.693(2)" stands for 0.693 ± 0.002.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpbench.analysis.estimate import Estimate
from dpbench.report.table import MISSING
from dpbench.units import CLOCK_SECONDS, KIBI

MOST_DIGITS = 5
"""Significant digits of a value at the most, however small its interval."""
ROUNDING = 1e-6
"""An interval this much smaller than its value is that of equal values."""
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def plus_minus(
    estimate: Estimate,
    *,
    scale: float = 1.0,
    plain_decimals: int = 3,
    two_after_one: bool = True,
) -> str:
    """Writes "1.72 ± 0.03"; "1.9 (0.8–4.4)" if the interval is far from symmetric."""
    value = estimate.value * scale
    if estimate.basis == "baseline":
        return f"{value:.0f}"
    if estimate.interval is None or estimate.half_width is None:
        return _fixed(value, plain_decimals)
    low, high = (end * scale for end in estimate.interval)
    if _is_lopsided(value, low, high):
        places = decimals(min(value - low, high - value), value)
        return f"{_fixed(value, places)} ({_fixed(low, places)}–{_fixed(high, places)})"
    half_width = estimate.half_width * scale
    if half_width <= ROUNDING * abs(value):
        return f"{value:,.{plain_decimals}f} ± 0"
    places = decimals(half_width, value, two_after_one=two_after_one)
    return f"{_fixed(value, places)} ± {half_width:,.{places}f}"


def percentage(estimate: Estimate | None) -> str:
    """Writes a share as "86.1 ± 1.4 %"."""
    return or_missing(estimate, lambda e: f"{plus_minus(e, scale=100, plain_decimals=1)} %")


def or_missing(estimate: Estimate | None, write: Callable[[Estimate], str]) -> str:
    return MISSING if estimate is None else write(estimate)


def compact(estimate: Estimate) -> str:
    """Writes "0.693(2)" for 0.693 ± 0.002, "-1.2(3)e-5" for small ones; alone, "0.6931".

    An interval that is far from symmetric has its ends: "6 (0–872)".
    """
    value, half_width = estimate.value, estimate.half_width
    if half_width is None:
        return f"{value:.4g}"
    largest = max(abs(value), half_width)
    if 0 < largest < 1e-3:
        exponent = math.floor(math.log10(largest))
        return f"{_narrow(estimate, 10.0**exponent)}e{exponent}"
    return _narrow(estimate, 1.0)


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit that fits a time, of s, ms and µs: its size in seconds, and its name."""
    return next((unit for unit in _TIME_UNITS if seconds >= unit[0]), _TIME_UNITS[-1])


def compact_time(estimate: Estimate) -> str:
    """Writes seconds in the unit that fits: "1.23(4) ms" for 1.23 ± 0.04 ms; "1.23 ms"."""
    lopsided = estimate.interval is not None and _is_lopsided(estimate.value, *estimate.interval)
    reach = 0.0 if lopsided else estimate.half_width or 0.0
    largest = max(abs(estimate.value), reach)
    if largest < CLOCK_SECONDS:
        return "0 µs"
    size, unit = time_unit(largest)
    if estimate.half_width is None:
        value = estimate.value / size
        return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:,.0f} {unit}"
    return f"{_narrow(estimate, size)} {unit}"


def memory(value_bytes: float) -> str:
    """Writes "297 MiB", "1.44 GiB": the third digit of a resident set is noise already."""
    value, unit = value_bytes, "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < KIBI:
            break
        value, unit = value / KIBI, larger
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.3g} {unit}"


def decimals(half_width: float, value: float, *, two_after_one: bool = True) -> int:
    """Decimals that show one significant digit of a half-width, two if it starts with a 1."""
    if half_width <= 0:
        return 3
    exponent = math.floor(math.log10(half_width))
    second = two_after_one and half_width / 10**exponent < 1.95
    supported = int(second) - exponent
    integer_digits = math.floor(math.log10(abs(value))) + 1 if value else 1
    return max(0, min(supported, MOST_DIGITS - integer_digits))


def _narrow(estimate: Estimate, size: float) -> str:
    """An estimate with an interval, in units of `size`, in as few characters as it takes."""
    assert estimate.interval is not None
    assert estimate.half_width is not None
    value, half_width = estimate.value / size, estimate.half_width / size
    low, high = (end / size for end in estimate.interval)
    if _is_lopsided(value, low, high):
        places = decimals(max(value - low, abs(value) / 10), value, two_after_one=False)
        return f"{_fixed(value, places)} ({_fixed(low, places)}–{_fixed(high, places)})"
    if half_width <= ROUNDING * abs(value):
        return f"{value:.4f}(0)"
    places = decimals(half_width, value, two_after_one=False)
    return f"{_fixed(value, places)}({half_width * 10**places:.0f})"


def _fixed(value: float, places: int) -> str:
    """Without the sign of a zero."""
    text = f"{value:,.{places}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text


def _is_lopsided(value: float, low: float, high: float) -> bool:
    below, above = value - low, high - value
    return above > 1.25 * below and above > 0.2 * abs(value)


def quantity(estimate: Estimate | None, *, header: str = "") -> str:
    """Writes "1.23(4) ms", "297 MiB", "86 ± 2 %", "1,337 ± 15 images/s"; a rate that stands in the
    header of its column goes without its unit."""
    if estimate is None:
        return MISSING
    if estimate.unit == "s":
        return compact_time(estimate)
    if estimate.unit == "B":
        return memory(estimate.value)
    if estimate.unit == "of linear":
        return percentage(estimate)
    if estimate.unit.endswith("/s"):
        number = plus_minus(estimate, plain_decimals=1)
        return number if f"({estimate.unit})" in header else f"{number} {estimate.unit}"
    return compact(estimate)


def sample_sizes(repetitions: tuple[int, int]) -> str:
    """Writes "5"; "5, 2" where baseline and candidate differ."""
    return ", ".join(map(str, dict.fromkeys(repetitions)))


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
