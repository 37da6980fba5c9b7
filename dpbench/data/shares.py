"""Dividing samples among ranks: equally, or in proportion to what each can do."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpbench import units
from dpbench.errors import UsageError


def split(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """`total` samples in proportion to `shares`: each at least 1, together exactly `total`.

    By the largest remainder: everybody gets the whole part of its due, and what is left goes to
    those who miss most, the earlier ones first. With equal shares the sizes differ by one at most.

    Raises:
        UsageError: a share that is not finite and above 0, or fewer samples than shares.
    """
    check(shares)
    if total < len(shares):
        raise UsageError(
            f"got {units.counted(total, 'sample')} for {units.counted(len(shares), 'rank')}; "
            "expected at least one for each; take more samples or fewer ranks"
        )
    whole = sum(shares)
    due = [total * share / whole for share in shares]
    sizes = [max(1, math.floor(part)) for part in due]
    while (left := total - sum(sizes)) != 0:
        if left > 0:
            chosen = max(range(len(due)), key=lambda i: due[i] - sizes[i])
            sizes[chosen] += 1
        else:  # the least of 1 gave some more than their due
            above = (i for i, size in enumerate(sizes) if size > 1)
            chosen = max(above, key=lambda i: sizes[i] - due[i])
            sizes[chosen] -= 1
    return tuple(sizes)


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
