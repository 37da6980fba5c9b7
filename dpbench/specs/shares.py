"""Dividing samples among ranks: equally, or in proportion to what each can do."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpbench import units
from dpbench.errors import UsageError


def split(total: int, shares: Sequence[float], *, least: int = 1) -> tuple[int, ...]:
    """`total` samples in proportion to `shares`: each at least `least`, together exactly `total`.

    By the largest remainder: everybody gets the whole part of its due, and what is left goes to
    those who miss most, the earlier ones first. With equal shares the sizes differ by one at most.

    Raises:
        UsageError: a share that is not finite and above 0, or too few samples.
    """
    check(shares)
    if total < least * len(shares):
        raise UsageError(
            f"got {units.counted(total, 'sample')} for {units.counted(len(shares), 'rank')}; "
            "expected at least one for each; take more samples or fewer ranks"
        )
    whole = sum(shares)
    due = [total * share / whole for share in shares]
    sizes = [max(least, math.floor(part)) for part in due]
    missing = sorted(range(len(due)), key=lambda i: sizes[i] - due[i])
    for chosen in missing[: max(0, total - sum(sizes))]:
        sizes[chosen] += 1
    while sum(sizes) > total:  # the least gave some more than their due
        above = (i for i, size in enumerate(sizes) if size > least)
        sizes[max(above, key=lambda i: sizes[i] - due[i])] -= 1
    return tuple(sizes)


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """`split` with equal shares, where the last parts may get nothing."""
    return split(total, (1.0,) * parts, least=0)


def shares_by_speed(samples_per_second: Sequence[float]) -> tuple[float, ...]:
    """Shares with which ranks of these speeds end a step together; their sum is 1.

    The speeds are those of each rank alone, without waiting for others: samples ÷ seconds of its
    own forward and backward passes.
    """
    check(samples_per_second, "speeds in samples/s")
    whole = sum(samples_per_second)
    return tuple(speed / whole for speed in samples_per_second)


def check(shares: Sequence[float], what: str = "shares") -> None:
    """Raises UsageError unless there is at least one and all are finite and above 0."""
    if not shares or not all(math.isfinite(share) and share > 0 for share in shares):
        written = ", ".join(str(share) for share in shares) or "none"
        raise UsageError(f"{what}: got {written}; expected a finite number above 0 for each rank")
