"""How a value is written; an estimate to the digits that its interval supports, in one notation.

An interval that is about symmetric, or symmetric as printed, is "1.72 ± 0.03", any other "1.9
(0.8–4.4)"; so is a ratio whose ± would reach 1 where its interval does not. The half-width has one
significant digit, or, where there is room, two if it starts with a 1: "86.1 ± 1.4 %". Times and
shares cannot be negative: if their interval includes 0, nothing was found, and only its upper end
is written: "≤ 8 ms". A time whose whole interval lies below 0 is "≈ 0".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import partial

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.messages import one_line
from dpbench.units import CLOCK_SECONDS, GIGA

MAX_DIGITS = 5
"""Significant digits of a value at the most, however small its interval."""
EQUAL_VALUES_SHARE = 1e-6
"""Repetitions are equal if their interval is at most this share of the value."""
AT_MOST = "≤"
"""Begins a text that has the upper end alone of an interval that includes 0."""
NO_TIME = "≈ 0"
"""Text of a time whose whole interval lies below 0."""
TOO_NOISY = "too noisy"
"""Text of a speed whose interval says nothing, see `Estimate.is_too_noisy`."""
LOPSIDED_RATIO = 1.25
"""If one side of an interval is this many times the other, both ends are written."""
TIGHT_SHARE = 0.1
"""An interval that reaches at most this share of its value is written as ± its larger side."""
_NUMBER = re.compile(r"[\d,.]+")
_SHOWN_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def percent(share: float, digits: int = 2) -> str:
    """Write a share to so many digits, a large one to whole percents: 1.7 %, 38 %, 1,230 %; below
    a hundredth of a percent "<0.01 %"."""
    value = 100 * share
    if 0 < abs(value) < 0.01:
        return "<0.01 %"
    large = abs(value) >= 10**digits - 0.5  # it would be written as 1e+02
    return f"{value:,.0f} %" if large else f"{value:.{digits}g} %"


def span(counts: Iterable[int], noun: str = "") -> str:
    """The range of the numbers: "3–5", "1–3 repetitions"; "3" if all are equal."""
    known = {*counts}
    least, most = min(known), max(known)
    last = units.counted(most, noun) if noun else f"{most:,}"
    return last if least == most else f"{least:,}–{last}"


def three_digits(value: float) -> str:
    """Writes a value of unknown uncertainty: "0.412", "1.10", "4,988"; whole from 100 up."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def plus_minus(estimate: Estimate, *, scale: float = 1.0, two_after_one: bool = True) -> str:
    """Writes "1.72 ± 0.03"; "1.9 (0.8–4.4)" if the interval is lopsided; alone, "1.72"."""
    value = estimate.value * scale
    if estimate.basis == "definition":
        return f"{value:.0f}"
    if estimate.interval is None:
        return three_digits(value)
    half_width = max(estimate.sides) * scale
    if half_width <= EQUAL_VALUES_SHARE * abs(value):
        return f"{value:z,.3f} ± 0"
    nearer, farther = sorted(estimate.sides)
    is_about_symmetric = farther <= max(LOPSIDED_RATIO * nearer, TIGHT_SHARE * abs(estimate.value))
    if is_about_symmetric and not _would_reach_one(estimate, farther):
        places = decimals(half_width, value, two_after_one=two_after_one)
        return f"{_rounded(value, places)} ± {half_width:,.{places}f}"
    low, high = (end * scale for end in estimate.interval)
    places = max(_supported((high - low) / 2), _places(abs(value), 2))
    below, middle, above = (round(number, places) for number in (low, value, high))
    half_width = round(above - middle, places)
    if half_width == round(middle - below, places):
        return f"{_rounded(middle, places)} ± {_rounded(half_width, places)}"
    ends = [_rounded(end, places) for end in (below, above)]
    return f"{_rounded(middle, places)} ({(' to ' if below < 0 else '–').join(ends)})"


def _would_reach_one(ratio: Estimate, reach: float) -> bool:
    """Whether a ratio ± its larger side includes 1, no change, and its interval does not."""
    low, high = ratio.ends
    return ratio.unit == "×" and abs(ratio.value - 1) <= reach and not low <= 1 <= high


def percentage(estimate: Estimate) -> str:
    """Writes a share as "86.1 ± 1.4 %"; "≤ 3 %" if its interval includes 0."""
    return f"{_at_most(estimate, 100) or plus_minus(estimate, scale=100)} %"


def _at_most(estimate: Estimate, scale: float) -> str:
    """The upper end of an interval that includes 0, rounded up: "≤ 8"; empty for any other."""
    low, high = estimate.ends
    if estimate.interval is None or not low <= 0 < high:
        return ""
    places = _places(scale * high, 2)
    size = 10.0**places
    end = math.ceil(round(scale * high * size, 6)) / size
    return f"{AT_MOST} {end:,.{max(places, 0)}f}"


def significant(estimate: Estimate) -> str:
    """Writes "0.693 ± 0.002", "-1.2e-5 ± 0.3e-5" for small ones; alone, "0.693"."""
    largest = max(abs(estimate.value), *estimate.sides)
    if estimate.interval is None or not 0 < largest < 1e-3:
        return plus_minus(estimate, two_after_one=False)
    exponent = math.floor(math.log10(largest))
    number = plus_minus(estimate, scale=10.0**-exponent, two_after_one=False)
    return _NUMBER.sub(rf"\g<0>e{exponent}", number)


def slope(estimate: Estimate) -> str:
    """Writes the value to two digits, and the larger side of its interval as a share of it: "0.82
    ± 54 %"; alone, "0.82"; or that it is too noisy, as its interval includes 0 or spans too wide a
    range."""
    low, high = estimate.ends
    value = estimate.value
    if low <= 0 <= high or estimate.is_too_noisy:
        return TOO_NOISY
    number = f"{value:#.2g}".rstrip(".") if abs(value) < 99.5 else f"{value:,.0f}"
    if estimate.interval is None:
        return number
    return f"{number} ± {percent(max(estimate.sides) / abs(value), 1)}"


def time_text(estimate: Estimate) -> str:
    """Writes seconds in the unit that fits: "1.23 ± 0.04 ms"; alone, "1.23 ms"; "≤ 8 ms" if the
    interval includes 0, and "≈ 0" if it lies below 0."""
    low, high = estimate.ends
    if max(abs(low), abs(high)) < CLOCK_SECONDS:
        return "0 µs"
    if estimate.interval is None:
        return units.seconds(estimate.value)
    if high < 0:
        return NO_TIME
    seconds = high if low <= 0 < high else abs(estimate.value)
    size, unit = next((one for one in _SHOWN_UNITS if seconds >= one[0]), _SHOWN_UNITS[-1])
    number = _at_most(estimate, 1 / size) or plus_minus(
        estimate, scale=1 / size, two_after_one=False
    )
    return f"{number} {unit}"


def decimals(half_width: float, value: float, *, two_after_one: bool = True) -> int:
    """Decimals that show one significant digit of a half-width, two if it starts with a 1."""
    supported = _supported(half_width, two_after_one=two_after_one)
    return max(0, min(supported, _places(abs(value), MAX_DIGITS)))


def plain(value: str | float | Estimate) -> str:
    """Writes a value: "ddp", "yes", "32", "0.01", "1.72 ± 0.03"."""
    if isinstance(value, Estimate):
        return TOO_NOISY if value.is_too_noisy else plus_minus(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def unless_too_noisy(write: Callable[[Estimate], str]) -> Callable[[Estimate], str]:
    """Writes a value that is compared by ratio, or that it is too noisy."""
    return lambda estimate: TOO_NOISY if estimate.is_too_noisy else write(estimate)


gigabytes = unless_too_noisy(lambda bandwidth: significant(bandwidth.scaled(1 / GIGA, unit="GB/s")))
gigabytes_alone = unless_too_noisy(lambda bandwidth: three_digits(bandwidth.value / GIGA))
rate_with_unit = unless_too_noisy(lambda e: f"{plus_minus(e)} {one_line(e.unit)}")
ratio = unless_too_noisy(partial(plus_minus, two_after_one=False))
clear_percentage = unless_too_noisy(percentage)
whole_percentage = unless_too_noisy(
    lambda e: percentage(e) if e.interval is None else f"{100 * e.value:.0f} %"
)
"""Leaves out the interval, which stands elsewhere."""


def memory(size: Estimate | float) -> str:
    """Writes bytes, "1.44 GiB", without an interval."""
    return units.bytes_binary(size.value if isinstance(size, Estimate) else size)


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
