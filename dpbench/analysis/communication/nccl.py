"""NCCL's own estimate of an all-reduce's time, from the table in its log.

NCCL takes the fastest of its algorithms and protocols by latency + bytes ÷ bandwidth. Latencies
follow from the group's shape and the constants of `nccl_tuning.toml`; bandwidths from the topology
that it found, which only its log shows. Its corrections for medium sizes are left out: up to 2.5
times for trees, 1.4 times the latency for rings of large messages.

NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING makes rank 0 print the table, a row a collective and a
cell "latency/bandwidth" in µs and GB/s for each algorithm and protocol; a bandwidth of 0 means that
the pair is switched off. Since 2.19 it comes in blocks of three algorithms:

    host:pid:tid [0] NCCL INFO   Algorithm   |         Tree         |         Ring         | …
    host:pid:tid [0] NCCL INFO   Protocol    |   LL | LL128 | Simple |   LL | LL128 | Simple | …
    host:pid:tid [0] NCCL INFO     AllReduce | 16.8/ 0.5 | 31.0/ 0.0 | …

before, in one whose header "Latency/AlgBw" has cells "Tree/ LL".
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from dpbench.analysis.communication.bandwidth import bus_factor
from dpbench.analysis.communication.collective_cost import CollectiveCost
from dpbench.errors import UsageError
from dpbench.units import GIGA, MICRO

TABLE = "nccl_tuning.toml"
PROTOCOLS = ("LL", "LL128", "Simple")
REMEDY = "run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING"
_LINE = re.compile(r"NCCL INFO\s+(Algorithm|Latency/AlgBw|AllReduce)\s*\|(.*)")
_CELL = re.compile(r"\s*([0-9]+\.[0-9]+)/\s*([0-9]+\.[0-9]+)\s*")
_SHAPE = re.compile(r"nRanks (\d+) nNodes (\d+)")

Hop = Literal["nvlink", "pci"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """NCCL's estimate for one algorithm and protocol."""

    latency_seconds: float
    bytes_per_second: float
    """Bandwidth of the message, as algbw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclModel:
    """The all-reduce row of NCCL's table for one group, and what it implies for others.

    At other group sizes only Ring and Tree count: their latencies scale as the formulas below,
    the bandwidth of Ring with n / (2 (n-1)), Tree's stays.
    """

    tuned: Mapping[tuple[str, str], Tuned]
    """Entries by (algorithm, protocol): ("Ring", "LL128"); without those that are switched off."""
    group_size: int
    ranks_per_node: int
    hop: Hop = "nvlink"
    """Connection between ranks of a node."""

    def seconds(self, nbytes: float, n: int) -> float:
        """Seconds of an all-reduce of `nbytes` by n ranks; 0 for one."""
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

    With one rank per node the network's hop is that of a tree.
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


def parse_tuning_table(text: str) -> dict[tuple[str, str], tuple[float, float]]:
    """{(algorithm, protocol): (latency in µs, bandwidth in GB/s)} of all-reduce.

    If there are several tables, one per communicator, the first is used. Raises UsageError if there
    is none.
    """
    found: dict[tuple[str, str], tuple[float, float]] = {}
    columns: list[tuple[str, str]] = []
    for kind, rest in _LINE.findall(text):
        cells = [cell.strip() for cell in rest.split("|") if cell.strip()]
        if kind == "Algorithm":
            columns = [(algorithm, protocol) for algorithm in cells for protocol in PROTOCOLS]
        elif kind == "Latency/AlgBw":
            columns = [_pair(cell) for cell in cells]
        else:
            if len(cells) != len(columns):
                raise UsageError(
                    f"AllReduce has {len(cells)} cells below {len(columns)} columns in the NCCL "
                    f"log's table, which is damaged; {REMEDY}"
                )
            if found.keys() & {*columns}:
                break  # the next communicator's
            found.update(zip(columns, _numbers(cells), strict=True))
            columns = []
    if not found:
        raise UsageError(f"no table of all-reduce algorithms in the NCCL log; {REMEDY}")
    return found


def nccl_cost(text: str, *, hop: Hop = "nvlink") -> CollectiveCost:
    """NCCL's estimate for the network that its log describes.

    Raises UsageError if the log lacks the table or the number of ranks and nodes.
    """
    ranks, nodes = _shape(text)
    tuned = {
        pair: Tuned(latency_seconds=latency * MICRO, bytes_per_second=bandwidth * GIGA)
        for pair, (latency, bandwidth) in parse_tuning_table(text).items()
        if bandwidth > 0
    }
    if ranks < 2 or not {"Ring", "Tree"} & {algorithm for algorithm, _ in tuned}:
        raise UsageError(
            "the NCCL log is of one rank, or of a run without Ring and Tree; expected that of a "
            "run of several ranks without NCCL_ALGO"
        )
    model = NcclModel(
        tuned=tuned,
        group_size=ranks,
        ranks_per_node=-(-ranks // nodes),
        hop=hop,
    )
    return CollectiveCost(
        curves=(),
        model=model.seconds,
        name="the network of the NCCL log",
        largest=ranks if nodes == 1 else None,
        assumptions=(
            f"collectives take what NCCL expected of {ranks} ranks on {nodes} nodes by its log; "
            "at other group sizes the faster of Ring and Tree by its own formulas",
        ),
    )


def _shape(text: str) -> tuple[int, int]:
    """Ranks and nodes of the communicator of the first table: its line precedes the table."""
    table = _LINE.search(text)
    before = _SHAPE.findall(text, 0, table.start() if table else len(text))
    if not before:
        raise UsageError(
            f'no line with "nRanks … nNodes …" before a table in the NCCL log; {REMEDY}'
        )
    ranks, nodes = before[-1]
    return int(ranks), int(nodes)


def _pair(cell: str) -> tuple[str, str]:
    algorithm, _, protocol = cell.partition("/")
    return algorithm.strip(), protocol.strip()


def _numbers(cells: Iterable[str]) -> Iterable[tuple[float, float]]:
    for cell in cells:
        if (match := _CELL.fullmatch(cell)) is None:
            raise UsageError(f"{cell!r} in the NCCL log's table is not latency/bandwidth; {REMEDY}")
        yield float(match[1]), float(match[2])
