"""The time of an all-reduce on a network, for any message and group size.

A network is given by latency and bandwidth of the links inside a node and between nodes, from a
preset, a TOML file with the keys of `Topology`, or two numbers.

The models have a latency α per message and a bandwidth B per link and direction; S is the bytes
that each of n ranks holds. Sources: Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", 2005 (ring); Sanders, Speck and Träff, "Two-tree algorithms for
full bandwidth broadcast, reduction and scan", 2009 (tree).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpbench import units
from dpbench.errors import UnknownName, UsageError
from dpbench.units import GIGA, MICRO


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Costs of all-reduces, and where they come from."""

    name: str
    all_reduce: Callable[[float, int], float]
    """Seconds of an all-reduce, from its bytes and the number of ranks (two or more)."""
    ranks_per_node: int | None = None
    """Ranks that share a node; None if all ranks are on one machine."""
    single_node: bool = False
    """Whether there is only one node."""
    ends: tuple[float, float] = (1.0, 1.0)
    """Factors on the time of a collective at the ends of its 90 % interval."""
    assumption: str

    def seconds(self, nbytes: float, group_size: int) -> float:
        """Seconds of one all-reduce; 0 for one rank or no bytes."""
        return 0.0 if group_size == 1 or nbytes <= 0 else self.all_reduce(nbytes, group_size)

    def refusal(self, group_size: int) -> str | None:
        """Why there is no cost at a group size; None if there is one."""
        node = self.ranks_per_node
        if self.single_node and node is not None and group_size > node:
            return f"{self.name} is one node of {node} ranks; use a topology with an [inter] link"
        return None


class Link(BaseModel):
    """A connection between two ranks of a node, or between a whole node and the network."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    latency_us: float = Field(ge=0, le=1e6)
    """Microseconds per message."""
    gigabytes_per_second: float = Field(ge=1e-6, le=1e6)
    """Bandwidth in each direction, in 10⁹ bytes per second."""

    @property
    def latency_seconds(self) -> float:
        return self.latency_us * MICRO

    @property
    def bytes_per_second(self) -> float:
        return self.gigabytes_per_second * GIGA


class Topology(BaseModel):
    """A network by its figures: nodes of some ranks, and the links inside and between them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ranks_per_node: int = Field(ge=1)
    intra: Link | None = None
    """Link between two ranks of a node."""
    inter: Link | None = None
    """Link of a whole node, with all its ranks, to the others; None for a single node."""
    algorithm: Literal["auto", "ring", "tree", "hierarchical"] = "auto"
    """`auto` is the fastest of the others for each size and group, as NCCL chooses."""
    launch_us: float = Field(default=0, ge=0, le=1e6)
    """Microseconds that every collective takes besides its messages."""
    uncertainty: float | None = Field(default=None, ge=1, le=100)
    """Factor by which collectives may take longer or shorter than these figures say."""
    source: str = Field(min_length=1)
    date: date

    @model_validator(mode="after")
    def _has_links(self) -> Topology:
        if self.intra is None and (self.ranks_per_node > 1 or self.inter is None):
            raise ValueError("[intra] is missing: the link between ranks of a node")
        return self

    def all_reduce(self, nbytes: float, n: int) -> float:
        """Seconds of an all-reduce among n ranks, two or more."""
        nodes = -(-n // self.ranks_per_node)
        ranks = min(n, self.ranks_per_node)
        outer = self.inter or self.intra
        inner = self.intra or self.inter
        assert inner is not None, "the validator lets no other through"
        assert outer is not None, "the validator lets no other through"
        across, inside = outer.latency_seconds, inner.latency_seconds
        slowest = inner.bytes_per_second
        if nodes > 1:
            slowest = min(slowest, outer.bytes_per_second)

        def ring() -> float:
            """2 (n-1) α + 2 (n-1)/n S/B; 2 (m-1) of its messages pass between the m nodes."""
            latency = 2 * (n - nodes) * inside + 2 * (nodes - 1) * across
            return latency + 2 * (n - 1) / n * nbytes / slowest

        def tree() -> float:
            """2 log2(m) α + 2 S/B: two binary trees over nodes, a chain of ranks in each."""
            depth = (nodes - 1).bit_length()
            return 2 * (ranks - 1) * inside + 2 * depth * across + 2 * nbytes / slowest

        def hierarchical() -> float:
            """Reduce-scatter in each node, all-reduce of the shards between nodes, all-gather."""
            within = 2 * (ranks - 1) * inside
            within += 2 * (ranks - 1) / ranks * nbytes / inner.bytes_per_second
            hops = min(nodes - 1, (nodes - 1).bit_length())
            between = 2 * (nodes - 1) / nodes * nbytes / outer.bytes_per_second
            return within + 2 * hops * across + between

        costs = {"ring": ring, "tree": tree, "hierarchical": hierarchical}
        chosen = costs.values() if self.algorithm == "auto" else (costs[self.algorithm],)
        return self.launch_us * MICRO + min(cost() for cost in chosen)

    def network(self, name: str) -> Network:
        """The network of these figures."""
        links = [
            f"{link.gigabytes_per_second:g} GB/s {place}"
            for link, place in ((self.intra, "between ranks of a node"), (self.inter, "per node"))
            if link is not None
        ]
        factor = self.uncertainty or 1.0
        known = f"collectives may take up to {factor:g} times as long, or as little as 1/{factor:g}"
        if self.uncertainty is None:
            known = "the topology states no uncertainty, so the bands include none"
        ranks = units.counted(self.ranks_per_node, "rank")
        figures = f"nodes of {ranks}, {', '.join(links)}"
        return Network(
            name=name,
            all_reduce=self.all_reduce,
            ranks_per_node=self.ranks_per_node,
            single_node=self.inter is None,
            ends=(1 / factor, factor),
            assumption=(f"{name}: {figures} ({self.source}; {self.date}); {known}"),
        )


def presets() -> dict[str, Topology]:
    """The topologies that ship with dpbench, by name."""
    text = files(__package__).joinpath("topologies.toml").read_text(encoding="utf-8")
    return {name: Topology(**table) for name, table in tomllib.loads(text).items()}


def load_topology(name_or_path: str) -> Network:
    """A preset by its name, or a file: what ends with .toml or contains a slash.

    Raises UsageError for a name, file, key or value that cannot be used.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml" and len(path.parts) == 1:
        if name_or_path not in presets():
            known = [*presets(), "or a path to a .toml file"]
            raise UnknownName("topology", name_or_path, known)
        return presets()[name_or_path].network(name_or_path)
    try:
        return Topology(**tomllib.loads(path.read_text(encoding="utf-8"))).network(path.stem)
    except OSError as error:
        raise UsageError(f"{path}: cannot read the topology ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: expected a TOML file ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        got = "" if first["type"] in ("missing", "value_error") else f", got {first['input']!r}"
        raise UsageError(f"{path}: {place}{': ' if place else ''}{first['msg']}{got}") from None


def flat_network(gigabytes_per_second: float, latency_us: float) -> Network:
    """One rank per node, and the same link for each."""
    link = Link(latency_us=latency_us, gigabytes_per_second=gigabytes_per_second)
    given = Topology(ranks_per_node=1, inter=link, source="command line", date=date.today())
    name = f"{gigabytes_per_second:g} GB/s, {latency_us:g} µs"
    assumption = f"every replica has a link of {name} (from the command line)"
    return replace(given.network(name), assumption=assumption)
