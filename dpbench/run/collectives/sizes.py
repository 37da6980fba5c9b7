"""Message sizes as they are typed: 4B-256MB, 4B-256MBx2, or 1KB,25MiB."""

from __future__ import annotations

import re

from dpbench.errors import UsageError
from dpbench.units import BYTE_UNITS
from dpbench.values import comma_list, positive_int, shorten

FACTOR = 4
LARGEST = 2**40
_SIZE = re.compile(r"([0-9]{1,18})\s*([A-Za-z]*)")


def parse_size(option: str, token: str) -> int:
    """Bytes, from a whole number with its unit."""
    match = _SIZE.fullmatch(token.strip())
    if match and not match[2]:
        raise UsageError(
            f"{option}: {shorten(token)} has no unit; expected {match[1]}B or {match[1]}MB"
        )
    units = {name.lower(): factor for name, factor in BYTE_UNITS.items()}
    factor = match and units.get(match[2].lower())
    if not match or factor is None or not 0 < int(match[1]) * factor <= LARGEST:
        raise UsageError(
            f"{option}: {shorten(token)} is not a size; expected a whole number up to 1 TiB with "
            f"one of {', '.join(BYTE_UNITS)}, as in 25MiB"
        )
    return int(match[1]) * factor


def parse_sizes(option: str, text: str, *, multiple_of: int, notes: list[str]) -> tuple[int, ...]:
    """Rising sizes: those of a list, or of a range, which holds both its ends.

    Raises UsageError for a size that is no multiple of `multiple_of`, the bytes of an element.
    """
    sizes = _range(option, text) if "-" in text else comma_list(option, text, parse_size, notes)
    for size in sizes:
        if size % multiple_of:
            raise UsageError(
                f"{option} {shorten(text)}: {size} B are not whole elements; "
                f"expected multiples of {multiple_of} B"
            )
    return tuple(sorted(sizes))


def _range(option: str, text: str) -> tuple[int, ...]:
    first, _, rest = text.partition("-")
    last, by, factor_text = rest.partition("x")
    if not (first.strip() and last.strip()):
        raise UsageError(f"{option} {shorten(text)}: expected smallest-largest, as in 4B-256MB")
    smallest, largest = parse_size(option, first), parse_size(option, last)
    factor = positive_int(f"{option} {shorten(text)}, factor", factor_text) if by else FACTOR
    if smallest > largest:
        raise UsageError(f"{option} {shorten(text)}: the range falls; expected smallest-largest")
    if factor < 2:
        raise UsageError(f"{option} {shorten(text)}: expected a factor of at least 2, as in x4")
    sizes = [smallest]
    while sizes[-1] * factor < largest:
        sizes.append(sizes[-1] * factor)
    return tuple(dict.fromkeys((*sizes, largest)))
