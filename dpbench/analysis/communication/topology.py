"""Networks that are specified rather than measured, and the time of an all-reduce on them.

A network is nodes of some ranks, a link between ranks inside a node, and one between nodes. It is
one of the presets that come with dpbench, or a TOML file of the user with the keys of a preset:

    ranks_per_node = 8
    source = "data sheet of our cluster"
    date = 2026-01-31
    [intra]
    latency_us = 2
    gigabytes_per_second = 200
    [inter]                      # of a whole node; left out, there is one node only
    latency_us = 10
    gigabytes_per_second = 25

`algorithm`, `launch_us`, `backend` and `uncertainty` may be added, the latter a factor from 1 on:
with 1.2 collectives may take 1.2 times as long as these figures say, or 1.2 times less. A gigabyte
is 10⁹ bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from dpbench.analysis.communication import cost_models
from dpbench.analysis.communication.cost_models import Link
from dpbench.errors import UnknownName, UsageError
from dpbench.specs.traits import PROCESS_GROUP_BACKENDS
from dpbench.units import GIGA, MICRO

Algorithm = Literal["auto", "ring", "tree", "hierarchical", "halving-doubling", "in-network"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

TABLE = "topologies.toml"
THIS_MACHINE = "this-machine"
"""Name for no topology: only measurements count."""
MOST_MICROSECONDS = 1e6
GIGABYTES_PER_SECOND = (1e-6, 1e6)
"""Least and largest bandwidth that a link may have."""
REQUIRED = ("ranks_per_node", "source", "date")
OPTIONAL = ("intra", "inter", "algorithm", "launch_us", "backend", "uncertainty")
MOST_UNCERTAIN = 100.0
LINK = ("latency_us", "gigabytes_per_second")


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """A network and the algorithm that its collectives use.

    "auto" is the fastest of ring, tree and hierarchical for each size and group, as NCCL chooses
    by its own estimates.
    """

    name: str
    ranks_per_node: int
    intra: Link
    """Link between two ranks of a node."""
    inter: Link | None
    """Link of a whole node, with all its ranks, to the others; None if there is only one node."""
    algorithm: Algorithm = "auto"
    launch_seconds: float = 0.0
    """Seconds that every collective takes besides its messages."""
    backend: str | None = None
    """Backend whose measured curves may belong to this network; None means any."""
    uncertainty: float | None = None
    """Factor by which the time of a collective may be longer or shorter than these figures say, in
    nine of ten cases; None if unknown."""
    source: str
    """Source of the figures."""
    date: str

    def nodes(self, group_size: int) -> int:
        """Number of nodes that a group needs; the last one may not be full."""
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
    """The link that limits messages that pass all ranks: the worse bandwidth and the worse
    latency."""
    if topology.nodes(group_size) == 1 or topology.inter is None:
        return topology.intra
    return Link(
        latency_seconds=max(topology.intra.latency_seconds, topology.inter.latency_seconds),
        bytes_per_second=min(topology.intra.bytes_per_second, topology.inter.bytes_per_second),
    )


def _ring(topology: Topology, nbytes: float, n: int) -> float:
    """`cost_models.ring`; 2 (m-1) of the 2 (n-1) consecutive messages pass between the m nodes
    (NCCL)."""
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
    node = topology.inter or topology.intra  # with one node, no byte leaves it
    return min(
        cost_models.hierarchical(nbytes, ranks, nodes, topology.intra, node, between=between)
        for between in (cost_models.ring, cost_models.tree_of_shards)
    )


def _over_nodes(
    algorithm: cost_models.Algorithm, topology: Topology, nbytes: float, n: int
) -> float:
    """Seconds of an algorithm among the ranks of one node; on several nodes, for the shards of a
    ring inside each node."""
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


_ALGORITHMS: dict[str, Callable[[Topology, float, int], float]] = {
    "ring": _ring,
    "tree": _tree,
    "hierarchical": _hierarchical,
    "halving-doubling": partial(_over_nodes, cost_models.halving_doubling),
    "in-network": partial(_over_nodes, cost_models.in_network),
}


def load_topology(name_or_path: str) -> Topology:
    """A preset by its name, or a file: what ends with .toml or holds a slash.

    Raises UsageError for a name, file, key or value that cannot be used.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return _from_file(path)
    if name_or_path == THIS_MACHINE:
        raise UsageError(f"{THIS_MACHINE} is no network of its own; leave the topology out")
    if name_or_path not in presets():
        raise UnknownName("topology", name_or_path, [*presets(), "or a path to a .toml file"])
    return presets()[name_or_path]


@cache
def presets() -> dict[str, Topology]:
    """The topologies that ship with dpbench, by name."""
    import tomllib

    text = files(__package__).joinpath(TABLE).read_text(encoding="utf-8")
    return {
        name: _parse_topology(table, name=name, where=f"{TABLE} {name}")
        for name, table in tomllib.loads(text).items()
    }


def _from_file(path: Path) -> Topology:
    import tomllib  # not at the top, which every command would pay for

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{path}: cannot be read ({why}); expected a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    return _parse_topology(table, name=path.stem, where=str(path))


def _parse_topology(table: Mapping[str, Any], *, name: str, where: str) -> Topology:
    """Parse a topology; raises UsageError prefixed with `where` for a key or value that cannot be
    used."""
    if table and all(isinstance(v, dict) and key not in OPTIONAL for key, v in table.items()):
        raise UsageError(
            f"{where}: expected one network, without a heading like [{next(iter(table))}]"
        )
    _check_keys(table, REQUIRED, OPTIONAL, where)
    ranks = table["ranks_per_node"]
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise UsageError(f"{where}: ranks_per_node = {ranks!r}; expected a whole number from 1 on")
    algorithm = table.get("algorithm", "auto")
    if algorithm not in ALGORITHMS:
        raise UnknownName(f"algorithm in {where}:", str(algorithm), ALGORITHMS)
    inter = _link(table, "inter", where)
    # A single rank on a node sends nothing inside it.
    intra = _link(table, "intra", where) or (inter if ranks == 1 else None)
    if intra is None:
        raise UsageError(f"{where}: [intra] is missing; expected the link between ranks of a node")
    return Topology(
        name=name,
        ranks_per_node=ranks,
        intra=intra,
        inter=inter,
        algorithm=algorithm,
        launch_seconds=_seconds(table, "launch_us", where) if "launch_us" in table else 0.0,
        backend=_backend(table, where) if "backend" in table else None,
        uncertainty=_number(table, "uncertainty", where, 1, MOST_UNCERTAIN)
        if "uncertainty" in table
        else None,
        source=_text(table, "source", where),
        date=_date(table, where),
    )


def _link(table: Mapping[str, Any], key: str, where: str) -> Link | None:
    if key not in table:
        return None
    inside = f"{where}, [{key}]"
    if not isinstance(table[key], dict):
        raise UsageError(f"{inside}: expected a table with {' and '.join(LINK)}")
    _check_keys(table[key], LINK, (), inside)
    return Link(
        latency_seconds=_seconds(table[key], "latency_us", inside),
        bytes_per_second=GIGA
        * _number(table[key], "gigabytes_per_second", inside, *GIGABYTES_PER_SECOND),
    )


def _check_keys(
    table: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...], where: str
) -> None:
    for key in table:
        if key not in (*required, *optional):
            raise UnknownName(f"key in {where}:", key, (*required, *optional))
    if missing := [key for key in required if key not in table]:
        tables = " and [intra], [inter] or both" if "intra" in optional else ""
        raise UsageError(
            f"{where}: {', '.join(missing)} missing; expected {', '.join(required)}{tables}"
        )


def _seconds(table: Mapping[str, Any], key: str, where: str) -> float:
    return MICRO * _number(table, key, where, 0, MOST_MICROSECONDS)


def _number(table: Mapping[str, Any], key: str, where: str, least: float, most: float) -> float:
    value = table[key]
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    if not usable or not least <= value <= most:
        raise UsageError(
            f"{where}: {key} = {value!r}; expected a number from {least:g} to {most:,g}"
        )
    return float(value)


def _backend(table: Mapping[str, Any], where: str) -> str:
    name = _text(table, "backend", where)
    if name not in PROCESS_GROUP_BACKENDS:
        raise UnknownName(f"backend in {where}:", name, PROCESS_GROUP_BACKENDS)
    return name


def _date(table: Mapping[str, Any], where: str) -> str:
    """The date, as a TOML date or a string."""
    try:
        return date.fromisoformat(str(table["date"])).isoformat()
    except ValueError:
        raise UsageError(
            f"{where}: date = {table['date']!r}; expected one as in 2026-01-31"
        ) from None


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table[key]
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {key} = {value!r}; expected a text")
    return value
