"""How long NCCL itself expects an all-reduce to take.

It takes the fastest of its algorithms and protocols by latency + bytes ÷ bandwidth. Latencies
follow from the group's shape and the constants of `nccl_tuning.toml`; bandwidths from the topology
that it found, which only its log tells. Left out are its corrections for middling sizes: trees by
up to 2.5 times, rings of large messages by 1.4 times the latency.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from dpbench.analysis.communication.bandwidth import bus_factor
from dpbench.units import MICRO

TABLE = "nccl_tuning.toml"
Hop = Literal["nvlink", "pci"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """What NCCL expects of one algorithm and protocol."""

    latency_seconds: float
    bytes_per_second: float
    """Of the message, as algbw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclModel:
    """The all-reduce row of NCCL's table for one group, and what it says of others.

    At other group sizes only Ring and Tree count: their latencies scale as the formulas below,
    the bandwidth of Ring with n / (2 (n-1)), Tree's stays.
    """

    tuned: Mapping[tuple[str, str], Tuned]
    """By (algorithm, protocol): ("Ring", "LL128"); without those that are switched off."""
    group_size: int
    ranks_per_node: int
    hop: Hop = "nvlink"
    """Between ranks of a node."""

    def seconds(self, nbytes: float, n: int) -> float:
        """Of an all-reduce of so many bytes by n ranks; 0 for one."""
        if n == 1:
            return 0.0
        options = (self._scaled(*key, n) for key in self.tuned if self._known(key[0], n))
        return min(o.latency_seconds + nbytes / o.bytes_per_second for o in options)

    def _known(self, algorithm: str, n: int) -> bool:
        return n == self.group_size or algorithm in _constants()["base"]

    def _scaled(self, algorithm: str, protocol: str, n: int) -> Tuned:
        known = self.tuned[algorithm, protocol]
        if n == self.group_size:
            return known
        latency, was = (self._latency(algorithm, protocol, size) for size in (n, self.group_size))
        bandwidth = known.bytes_per_second
        if algorithm == "Ring":
            bandwidth *= bus_factor("all_reduce", self.group_size) / bus_factor("all_reduce", n)
        return Tuned(
            latency_seconds=known.latency_seconds * latency / was, bytes_per_second=bandwidth
        )

    def _latency(self, algorithm: str, protocol: str, n: int) -> float:
        formula = ring_latency if algorithm == "Ring" else tree_latency
        return formula(protocol, n, self.ranks_per_node, hop=self.hop)


def ring_latency(protocol: str, n: int, ranks_per_node: int, *, hop: Hop = "nvlink") -> float:
    """Seconds: base + (2 (n-1) - between) inside + between × network, between = 2 (nodes - 1).

    With one rank a node the network's hop is that of a tree.
    """
    nodes = -(-n // ranks_per_node)
    table, between = _constants(), 2 * (nodes - 1)
    inside = table[hop]["Ring"][protocol]
    if nodes > 1:
        overhead = table["network_overhead"] * (3 if protocol == "Simple" else 1)
        inside = max(inside, overhead)
    outside = table["network"]["Tree" if ranks_per_node == 1 else "Ring"][protocol]
    hops = (2 * (n - 1) - between) * inside + between * outside
    return float(MICRO * (table["base"]["Ring"][protocol] + hops))


def tree_latency(protocol: str, n: int, ranks_per_node: int, *, hop: Hop = "nvlink") -> float:
    """Seconds: base + 2 [(ranks a node - 1) inside + floor(log2(nodes)) × network]."""
    table, nodes = _constants(), -(-n // ranks_per_node)
    hops = (min(n, ranks_per_node) - 1) * table[hop]["Tree"][protocol]
    hops += (nodes.bit_length() - 1) * table["network"]["Tree"][protocol]
    return float(MICRO * (table["base"]["Tree"][protocol] + 2 * hops))


@cache
def _constants() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(TABLE).read_text(encoding="utf-8"))
