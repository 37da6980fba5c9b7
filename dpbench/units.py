"""All number formatting: a value, its interval, its unit.

A number with an interval shows the digits that the interval supports (two significant digits of
the half-width); a number without one says so where it is printed.
"""

from __future__ import annotations

import math

KIBI = 1024


def significant_decimals(half_width: float, digits: int = 2) -> int:
    """Decimals that show `digits` significant digits of a half-width; 0 at the least."""
    if not math.isfinite(half_width) or half_width <= 0:
        return 3
    return max(0, digits - 1 - math.floor(math.log10(half_width)))


def with_interval(value: float, low: float, high: float, *, scale: float = 1.0) -> str:
    """Writes "1724 ± 31", with the larger side of an asymmetric interval as half-width."""
    half_width = max(high - value, value - low) * scale
    decimals = min(significant_decimals(half_width), 6)
    return f"{value * scale:,.{decimals}f} ± {half_width:,.{decimals}f}"


def seconds(value: float) -> str:
    """Writes a duration in the unit that fits it: 12.3 µs, 4.56 ms, 7.8 s, 3 min 20 s."""
    if value < 0:
        return f"-{seconds(-value)}"
    if value < 0.9995e-3:  # what rounds to three digits of the next unit belongs to it
        return f"{value * 1e6:.3g} µs"
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if value < 59.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def bytes_binary(value: float) -> str:
    """Writes a size in KiB, MiB or GiB, whichever fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < KIBI or unit == "GiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.4g} {unit}"
        value /= KIBI
    raise AssertionError("unreachable")


def counted(count: int, noun: str) -> str:
    """Writes "1 trial", "2 trials"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
