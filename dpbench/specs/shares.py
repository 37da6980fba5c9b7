"""Shares of a whole: samples of a batch for ranks, and replicas of a group for hosts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

from pydantic import Field

from dpbench import units
from dpbench.errors import UsageError

LARGEST_GROUP = 65_536
Replicas = Annotated[int, Field(ge=1, le=LARGEST_GROUP)]
"""A number of replicas. Decoding refuses more, as a few bytes could ask for more than the memory
holds."""
LONGEST_LISTED = 3
"""Most equal hosts in a row that are listed one by one: "2+2+2", but "4×2"."""


def split(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """`total` samples in proportion to `shares`: each at least one, together exactly `total`.

    By the largest remainder: everybody gets the whole part of its due, and what is left goes to
    those who miss most, the earlier ones first. With equal shares the sizes differ by one at most.

    Raises:
        UsageError: a share that is not finite and above 0, or too few samples.
    """
    if not shares or not all(math.isfinite(share) and share > 0 for share in shares):
        got = ", ".join(str(share) for share in shares) or "none"
        raise UsageError(f"shares: got {got}; expected a finite number above 0 for each rank")
    if total < len(shares):
        raise UsageError(
            f"got {units.counted(total, 'sample')} for {units.counted(len(shares), 'rank')}; "
            "expected at least one for each; take more samples or fewer ranks"
        )
    whole = sum(shares)
    due = [total * share / whole for share in shares]
    sizes = [max(1, math.floor(part)) for part in due]
    missing = sorted(range(len(due)), key=lambda i: sizes[i] - due[i])
    for chosen in missing[: max(0, total - sum(sizes))]:
        sizes[chosen] += 1
    while sum(sizes) > total:  # some got one that is more than their due
        above = (i for i, size in enumerate(sizes) if size > 1)
        sizes[max(above, key=lambda i: sizes[i] - due[i])] -= 1
    return tuple(sizes)


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """`split` with equal shares, where the last parts may get nothing."""
    each, more = divmod(total, parts)
    return (each + 1,) * more + (each,) * (parts - more)


def replicas_by_host(group_size: int, offered: Sequence[int]) -> tuple[int, ...]:
    """The number of a group's replicas on each host; hosts are filled one after the other, and
    those that get none are left out.

    Raises ValueError if the hosts offer fewer.
    """
    if not 1 <= group_size <= sum(offered):
        raise ValueError(f"{group_size} replicas on hosts that offer {sum(offered)}")
    counts: list[int] = []
    for most in offered:
        counts.append(min(most, group_size - sum(counts)))
    return tuple(count for count in counts if count)


def on_hosts(nodes: Sequence[int]) -> str:
    """Writes " (2+1 hosts)" behind a group size, " (16×8 hosts)" where many are alike; "" for a
    group on one host."""
    return f" ({host_counts(nodes)} hosts)" if nodes else ""


def host_counts(nodes: Sequence[int]) -> str:
    """Replicas host by host: "2+1"."""
    words = []
    for count, alike in groupby(nodes):
        hosts = len([*alike])
        words += [f"{hosts}×{count}"] if hosts > LONGEST_LISTED else [str(count)] * hosts
    return "+".join(words)
