"""What a demo shows, piece by piece: sentences, tables of numbers, checks that hold or do not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Numbers to look at; all cells are written."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ()
    """Headers of columns that hold no numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One claim, and the numbers that decide it."""

    claim: str
    holds: bool
    found: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """Claims that must all hold."""

    checks: tuple[Check, ...]


Section = str | Table | Checks
"""A text is a paragraph, said before what it announces is made."""
