"""Plain numbers with their units, as all packages write them; the rest is `analysis.formatting`."""

from __future__ import annotations

from collections.abc import Sequence

KIBI = 1024
MEBI = 1024**2
GIGA = 1e9
CLOCK_SECONDS = 1e-9
"""Resolution of clocks; a shorter time is the rounding of a difference."""


def seconds(value: float) -> str:
    """Write a duration in the unit that fits it: 12.3 µs, 4.56 ms, 7.8 s, 3 min 20 s."""
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
    parts = ((hours, "h"), (minutes, "min"), (0 if hours else rest, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def bytes_binary(value: float) -> str:
    """Write a size to three digits: "297 MiB", "1.44 GiB"; the third of a resident set is noise
    already."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < KIBI:
            break
        value, unit = value / KIBI, larger
    return f"{value:.0f} {unit}" if abs(value) >= 100 or unit == "B" else f"{value:.3g} {unit}"


def some_of(labels: Sequence[str], most: int, noun: str = "") -> str:
    """The first labels, and how many more there are: "a; b; and 3 more", "a; and 1 more row"."""
    if len(labels) <= most:
        return "; ".join(labels)
    left = len(labels) - most
    rest = counted(left, f"more {noun}") if noun else f"{left:,} more"
    return f"{'; '.join(labels[:most])}; and {rest}"


def counted(count: int, noun: str) -> str:
    """Write "1 trial", "2 trials"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def stored(done: int, planned: int) -> str:
    """Write "2 of 3 trials are stored"."""
    verb = "is" if 1 in (done, planned) else "are"
    return f"{done:,} of {counted(planned, 'trial')} {verb} stored"
