"""Strict parsing of option values: nothing is coerced, clamped or dropped without a word.

Every error names the option, the offending token and what was expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from dpbench.errors import UnknownName, UsageError

T = TypeVar("T")

LONGEST_SHOWN = 60
MOST_DIGITS = 18
LONGEST_DURATION_SECONDS = 30 * 24 * 3600.0
_INTEGER = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def positive_int(option: str, token: str) -> int:
    return integer(option, token, least=1)


def integer(option: str, token: str, *, least: int) -> int:
    """A plain decimal integer of at least `least`."""
    text = token.strip()
    if _INTEGER.fullmatch(text) and len(text) > MOST_DIGITS:
        raise UsageError(f"{option}: {shorten(token)} is too large; at most {MOST_DIGITS} digits")
    if not _INTEGER.fullmatch(text) or int(text) < least:
        expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise UsageError(
            f"{option}: {shorten(token)} is not {expected}; write a whole number from {least} on"
        )
    return int(text)


def positive_float(option: str, token: str) -> float:
    """A finite number above zero, in plain or scientific notation."""
    value = _number(token)
    if not (math.isfinite(value) and value > 0):
        raise UsageError(
            f"{option}: {shorten(token)} is not a positive number; write e.g. 0.5, 2 or 1e-3"
        )
    return value


def bounded_float(option: str, token: str, *, least: float, most: float) -> float:
    """A number in a range, both ends included."""
    value = positive_float(option, token)
    if not least <= value <= most:
        raise UsageError(
            f"{option}: {shorten(token)} is out of range; expected {least:,g} to {most:,g}"
        )
    return value


def percentage(option: str, token: str, *, examples: str = "3% or 0.5%") -> float:
    """A share above 0 and below 100 %, as a fraction: "3%" or "3 %" is 0.03."""
    text = token.strip()
    value = _number(text.removesuffix("%")) if text.endswith("%") else math.nan
    if not 0 < value < 100:
        raise UsageError(
            f"{option}: {shorten(token)} is not a percentage; expected one above 0 % and below "
            f"100 %, written as in {examples}"
        )
    return value / 100


def duration_seconds(option: str, token: str) -> float:
    """A time above zero: 90, 90s or 5m."""
    text = token.strip()
    factor = _UNITS.get(text[-1:])
    value = _number(text) if factor is None else _number(text[:-1]) * factor
    if not (math.isfinite(value) and value > 0):
        raise UsageError(
            f"{option}: {shorten(token)} is not a duration; expected seconds, or e.g. 90s, 5m, 1h"
        )
    if value > LONGEST_DURATION_SECONDS:
        raise UsageError(f"{option}: {shorten(token)} is too long; expected at most 30 days (720h)")
    return value


def duration_text(seconds: float) -> str:
    """A time as it would be typed, in the largest unit that holds it in whole numbers: "5m"."""
    for unit, size in sorted(_UNITS.items(), key=lambda item: -item[1]):
        if seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def shorten(token: str) -> str:
    """The token in quotes, cut if it would fill the screen."""
    return repr(token if len(token) <= LONGEST_SHOWN else token[:LONGEST_SHOWN] + "…")


def _number(text: str) -> float:
    """NaN for what is not a number; float() alone would read 1_0 and ١٢ as well."""
    return float(text) if _DECIMAL.fullmatch(text.strip()) else math.nan


def known_name(option: str, token: str, known: Collection[str]) -> str:
    """A member of `known`; the error suggests the nearest."""
    name = token.strip()
    if name not in known:
        raise UnknownName(f"value for {option}:", name, known)
    return name


NOT_BEFORE_OPTION = re.compile(r",(?!\s*\w+\s*=)")
"""A comma between names that may have options: of mlp:width=4,depth=3,gpt only the second one."""


def at_commas(text: str) -> list[str]:
    return text.split(",")


def comma_list(
    option: str,
    text: str,
    parse: Callable[[str, str], T],
    notes: list[str],
    split: Callable[[str], Sequence[str]] = at_commas,
) -> tuple[T, ...]:
    """Parses "a,b,c"; a repeated value is dropped with a note, an empty one is an error."""
    if not text.strip():
        raise UsageError(f"{option} is empty; expected a comma-separated list, or leave it out")
    values: list[T] = []
    for token in split(text):
        if not token.strip():
            raise UsageError(f"{option}: {text!r} has an empty entry; remove the extra comma")
        value = parse(option, token)
        if value in values:
            notes.append(f"{option}: {token.strip()} is listed twice; it counts once")
        else:
            values.append(value)
    return tuple(values)
