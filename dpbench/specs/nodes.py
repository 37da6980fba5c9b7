"""The nodes that a group spans: how many of its replicas are on each, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

from pydantic import Field

MAX_GROUP = 65_536
ReplicaCount = Annotated[int, Field(ge=1, le=MAX_GROUP)]
"""A number of replicas. Decoding refuses more, as a few bytes could ask for more than the memory
holds."""
MAX_NODES_LISTED = 3
"""Most equal nodes in a row that are listed one by one: "2+2+2", but "4×2"."""


def fill_nodes(group_size: int, offered: Sequence[int]) -> tuple[int, ...]:
    """The number of a group's replicas on each node, of which each is filled before the next; those
    that get none are left out.

    Raises ValueError if the nodes offer fewer.
    """
    if not 1 <= group_size <= sum(offered):
        raise ValueError(f"{group_size} replicas on nodes that offer {sum(offered)}")
    counts: list[int] = []
    for most in offered:
        counts.append(min(most, group_size - sum(counts)))
    return tuple(count for count in counts if count)


def on_nodes(replicas_by_node: Sequence[int]) -> str:
    """Writes " (2+1 nodes)" behind a group size; "" for a group on one node."""
    return f" ({node_counts(replicas_by_node)} nodes)" if replicas_by_node else ""


def node_counts(replicas_by_node: Sequence[int]) -> str:
    """Replicas node by node: "2+1", and "16×8" for many alike."""
    words = []
    for count, alike in groupby(replicas_by_node):
        nodes = len([*alike])
        words += [f"{nodes}×{count}"] if nodes > MAX_NODES_LISTED else [str(count)] * nodes
    return "+".join(words)
