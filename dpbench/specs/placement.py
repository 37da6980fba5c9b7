"""Which hosts get the replicas of a group, and how that is written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

Placement = Literal["pack", "spread"]
PLACEMENTS = ("pack", "spread")
LONGEST_LISTED = 3
"""So many hosts alike in a row are listed one by one: "2+2+2", but "4×2"."""


def placed(group_size: int, offered: Sequence[int], placement: Placement) -> tuple[int, ...]:
    """How many of a group's replicas each host gets, without the hosts that get none.

    Raises ValueError if the hosts offer fewer.
    """
    if not 1 <= group_size <= sum(offered):
        raise ValueError(f"{group_size} replicas on hosts that offer {sum(offered)}")
    counts = [0] * len(offered)
    for _ in range(group_size):
        free = [host for host, count in enumerate(counts) if count < offered[host]]
        host = free[0] if placement == "pack" else min(free, key=counts.__getitem__)
        counts[host] += 1
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
