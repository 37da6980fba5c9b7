"""Networks as they are given, not measured: what an all-reduce would take on them.

A network is nodes of some ranks, a link between ranks inside a node, and one between nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from dpbench.analysis.communication import cost_models
from dpbench.analysis.communication.cost_models import Link
from dpbench.errors import UsageError

Algorithm = Literal["auto", "ring", "tree", "hierarchical", "halving-doubling", "in-network"]
ALGORITHMS: tuple[Algorithm, ...] = (
    "auto",
    "ring",
    "tree",
    "hierarchical",
    "halving-doubling",
    "in-network",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """A network and the algorithm that its collectives use.

    "auto" is the fastest of ring, tree and hierarchical for each size and group, as NCCL chooses
    by its own estimates.
    """

    name: str
    ranks_per_node: int
    intra: Link
    """Between two ranks of a node."""
    inter: Link | None
    """What one node, with all its ranks, has towards the others; None: there is one node only."""
    algorithm: Algorithm = "auto"
    launch_seconds: float = 0.0
    """What every collective takes besides its messages."""
    backend: str | None = None
    """Whose measured curves may be of this network; None: any backend's."""
    source: str
    """Where the figures are from."""
    date: str

    def nodes(self, group_size: int) -> int:
        """Nodes that a group takes; the last one may not be full."""
        return -(-group_size // self.ranks_per_node)


def all_reduce_seconds(topology: Topology, nbytes: float, group_size: int) -> float:
    """Seconds of an all-reduce, 0 for one rank.

    Raises UsageError if the group takes several nodes and the network has one.
    """
    if group_size == 1:
        return 0.0
    nodes = topology.nodes(group_size)
    if nodes > 1 and topology.inter is None:
        raise UsageError(
            f"{topology.name} is one node of {topology.ranks_per_node}, group size {group_size} "
            "takes more; give a topology with a link between nodes"
        )
    algorithms = ("ring", "tree", "hierarchical")
    chosen = algorithms if topology.algorithm == "auto" else (topology.algorithm,)
    costs = (_ALGORITHMS[name](topology, nbytes, group_size) for name in chosen)
    return topology.launch_seconds + min(costs)


def _slowest(topology: Topology, group_size: int) -> Link:
    """The link that holds up messages that pass all ranks: bandwidth and latency of the worse."""
    if topology.nodes(group_size) == 1 or topology.inter is None:
        return topology.intra
    return Link(
        latency_seconds=max(topology.intra.latency_seconds, topology.inter.latency_seconds),
        bytes_per_second=min(topology.intra.bytes_per_second, topology.inter.bytes_per_second),
    )


def _ring(topology: Topology, nbytes: float, n: int) -> float:
    """`cost_models.ring`; of 2 (n-1) messages in a row 2 (m-1) pass between the m nodes (NCCL)."""
    between = 2 * (topology.nodes(n) - 1)
    bandwidth = _slowest(topology, n).bytes_per_second
    inside = 2 * (n - 1) - between
    outside = 0.0 if topology.inter is None else topology.inter.latency_seconds
    latency = inside * topology.intra.latency_seconds + between * outside
    return latency + cost_models.lower_bound(nbytes, n, bandwidth)


def _tree(topology: Topology, nbytes: float, n: int) -> float:
    """`cost_models.double_tree` between nodes, along a chain of ranks inside each (NCCL)."""
    inside = min(n, topology.ranks_per_node) - 1
    chain, slowest = 2 * inside * topology.intra.latency_seconds, _slowest(topology, n)
    if topology.inter is None or topology.nodes(n) == 1:
        return chain + 2 * nbytes / slowest.bytes_per_second
    link = replace(slowest, latency_seconds=topology.inter.latency_seconds)
    return chain + cost_models.double_tree(nbytes, topology.nodes(n), link)


def _hierarchical(topology: Topology, nbytes: float, n: int) -> float:
    ranks, nodes = min(n, topology.ranks_per_node), topology.nodes(n)
    node = topology.inter or topology.intra  # of one node, no byte leaves it
    return min(
        cost_models.hierarchical(nbytes, ranks, nodes, topology.intra, node, between=between)
        for between in (cost_models.ring, cost_models.tree_of_shards)
    )


def _halving_doubling(topology: Topology, nbytes: float, n: int) -> float:
    return _over_nodes(cost_models.halving_doubling, topology, nbytes, n)


def _in_network(topology: Topology, nbytes: float, n: int) -> float:
    return _over_nodes(cost_models.in_network, topology, nbytes, n)


def _over_nodes(
    algorithm: cost_models.Algorithm, topology: Topology, nbytes: float, n: int
) -> float:
    """Among the ranks of one node; else for the shards of a ring inside each node."""
    if topology.inter is None or topology.nodes(n) == 1:
        return algorithm(nbytes, n, topology.intra)
    return cost_models.hierarchical(
        nbytes,
        topology.ranks_per_node,
        topology.nodes(n),
        topology.intra,
        topology.inter,
        between=algorithm,
    )


_ALGORITHMS = {
    "ring": _ring,
    "tree": _tree,
    "hierarchical": _hierarchical,
    "halving-doubling": _halving_doubling,
    "in-network": _in_network,
}
