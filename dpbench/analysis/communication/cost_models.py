"""The time of an all-reduce according to its algorithm.

Every model has a latency per message, α in seconds, and a bandwidth per link and direction, B in
bytes per second; S is the bytes that each of n ranks holds. The arithmetic is left out: it keeps
pace with the links on all but the oldest machines.

Sources: Hockney, "The communication challenge for MPP", 1994; Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", 2005 (ring, halving and doubling);
Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
2009 (double tree). No algorithm of messages between ranks is faster than
`lower_bound`: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A connection between two ranks, or between a node and the network."""

    latency_seconds: float
    bytes_per_second: float
    """Bandwidth in each direction."""

    def __post_init__(self) -> None:
        if not (self.latency_seconds >= 0 and math.isfinite(self.latency_seconds)):
            raise ValueError(f"a link's latency is not negative, got {self.latency_seconds} s")
        if not self.bytes_per_second > 0:
            raise ValueError(f"a link's bandwidth is positive, got {self.bytes_per_second} B/s")


Algorithm = Callable[[float, int, Link], float]
"""Seconds of an all-reduce, from its bytes, the number of ranks and the link of each."""


def point_to_point(nbytes: float, link: Link) -> float:
    """Hockney: α + S/B, one message from one rank to another."""
    return link.latency_seconds + nbytes / link.bytes_per_second


def lower_bound(nbytes: float, n: int, bytes_per_second: float) -> float:
    """2 (n-1)/n S/B: the least time of an all-reduce by messages between ranks."""
    return 2 * (n - 1) / n * nbytes / bytes_per_second


def ring(nbytes: float, n: int, link: Link) -> float:
    """2 (n-1) α + 2 (n-1)/n S/B: reduce-scatter, then all-gather, both round a ring."""
    steps = 2 * (n - 1)
    return steps * link.latency_seconds + lower_bound(nbytes, n, link.bytes_per_second)


def halving_doubling(nbytes: float, n: int, link: Link) -> float:
    """2 log2(n) α + 2 (n-1)/n S/B: recursive halving, then recursive doubling (Rabenseifner).

    A group whose size is no power of two has one more step each way, in which pairs exchange S: 2
    (floor(log2 n) + 1) α + (2 (p-1)/p + 2) S/B, p the largest power of two below n.
    """
    rounds = n.bit_length() - 1
    power = 2**rounds
    latency = 2 * rounds * link.latency_seconds
    halves = latency + lower_bound(nbytes, power, link.bytes_per_second)
    return halves if power == n else halves + 2 * point_to_point(nbytes, link)


def double_tree(nbytes: float, n: int, link: Link) -> float:
    """2 log2(n) α + 2 S/B: two binary trees, each pipelines half of the bytes."""
    if n == 1:
        return 0.0
    return 2 * tree_depth(n) * link.latency_seconds + 2 * nbytes / link.bytes_per_second


def tree_of_shards(nbytes: float, n: int, link: Link) -> float:
    """2 log2(n) α + 2 (n-1)/n S/B: the hops of a tree, and a ring's bytes."""
    latency = 2 * tree_depth(n) * link.latency_seconds
    return latency + lower_bound(nbytes, n, link.bytes_per_second)


def in_network(nbytes: float, n: int, link: Link) -> float:
    """α + S/B: a switch adds up, so that each byte crosses a rank's link once each way."""
    return 0.0 if n == 1 else point_to_point(nbytes, link)


def hierarchical(
    nbytes: float,
    ranks_per_node: int,
    nodes: int,
    intra: Link,
    node: Link,
    *,
    between: Algorithm = ring,
) -> float:
    """Reduce-scatter in each node, all-reduce of the shards between nodes, all-gather.

    2 (g-1) α_i + 2 (g-1)/g S/B_i, and `between` for S/g bytes at B_e/g: with a ring that is
    2 (m-1) α_e + 2 (m-1)/m S/B_e; g ranks on each of m nodes. `node` is the link of a whole node to
    the network; its g ranks send their shards at the same time.
    """
    share = node.bytes_per_second / ranks_per_node
    link = Link(latency_seconds=node.latency_seconds, bytes_per_second=share)
    inside = ring(nbytes, ranks_per_node, intra)
    return inside + between(nbytes / ranks_per_node, nodes, link)


def tree_depth(n: int) -> int:
    """Levels below the root of a binary tree over n: the logarithm, rounded up."""
    return (n - 1).bit_length()
