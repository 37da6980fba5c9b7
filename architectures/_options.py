"""Checks of an architecture's options: a ValueError that says what, got and expected."""

from __future__ import annotations

from collections.abc import Collection


def expect_one_of(name: str, got: object, expected: Collection[object]) -> None:
    """Raise ValueError unless `got` is one of `expected`."""
    if got not in expected:
        raise ValueError(f"{name}: got {got!r}, expected {', '.join(map(str, expected))}")


def expect_at_least(least: int, **options: int | None) -> None:
    """Raise ValueError for the first of `options` that is below `least`; None means not given."""
    for name, got in options.items():
        if got is not None and got < least:
            raise ValueError(f"{name}: got {got}, expected at least {least}")


def expect_multiple(name: str, got: int, *, of: int, called: str) -> None:
    """Raise ValueError unless `got` is a positive multiple of `of`; `called` names `of` in the
    message."""
    if got < 1 or got % of:
        raise ValueError(f"{name}: got {got}, expected a multiple of {called}, {of}")
