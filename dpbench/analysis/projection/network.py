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
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpbench import units
from dpbench.errors import UsageError, unknown_name
from dpbench.units import GIGA


class Link(BaseModel):
    """A connection between two ranks of a node, or between a whole node and the network."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    latency_us: float = Field(ge=0, le=1e6)
    """Microseconds per message."""
    gigabytes_per_second: float = Field(ge=1e-6, le=1e6)
    """Bandwidth in each direction, in 10⁹ bytes per second."""


class Topology(BaseModel):
    """A network by its figures: nodes of some ranks, and the links inside and between them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
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

    def seconds(self, nbytes: float, n: int) -> float:
        """Seconds of an all-reduce among n ranks; 0 for one rank or no bytes."""
        outer, inner = self.inter or self.intra, self.intra or self.inter
        if n == 1 or nbytes <= 0 or outer is None or inner is None:
            return 0.0
        nodes = -(-n // self.ranks_per_node)
        ranks = min(n, self.ranks_per_node)
        across, inside = outer.latency_us / 1e6, inner.latency_us / 1e6
        inter, intra = outer.gigabytes_per_second * GIGA, inner.gigabytes_per_second * GIGA
        slowest = min(intra, inter) if nodes > 1 else intra
        hops = (nodes - 1).bit_length()
        # Of 2 (n-1) messages round a ring, 2 (m-1) pass between the m nodes.
        ring = 2 * (n - nodes) * inside + 2 * (nodes - 1) * across
        ring += 2 * (n - 1) / n * nbytes / slowest
        # Two binary trees over nodes, and a chain of ranks in each node.
        tree = 2 * (ranks - 1) * inside + 2 * hops * across + 2 * nbytes / slowest
        # Reduce-scatter in each node, all-reduce of the shards between nodes, all-gather.
        hierarchical = 2 * (ranks - 1) * inside + 2 * (ranks - 1) / ranks * nbytes / intra
        hierarchical += 2 * min(nodes - 1, hops) * across + 2 * (nodes - 1) / nodes * nbytes / inter
        costs = {"ring": ring, "tree": tree, "hierarchical": hierarchical}
        return self.launch_us / 1e6 + costs.get(self.algorithm, min(costs.values()))

    def refusal(self, group_size: int) -> str | None:
        """Why there is no cost at a group size; None if there is one."""
        node = self.ranks_per_node
        if self.inter is None and group_size > node:
            return f"{self.name} is one node of {node} ranks; use a topology with an [inter] link"
        return None

    @property
    def assumption(self) -> str:
        """The figures, their source, and how far they may be off, in a sentence."""
        links = [
            f"{link.gigabytes_per_second:g} GB/s {place}"
            for link, place in ((self.intra, "between ranks of a node"), (self.inter, "per node"))
            if link is not None
        ]
        known = "the topology states no uncertainty, so the bands include none"
        if (factor := self.uncertainty) is not None:
            known = (
                f"collectives may take up to {factor:g} times as long, or as little as 1/{factor:g}"
            )
        figures = f"nodes of {units.counted(self.ranks_per_node, 'rank')}, {', '.join(links)}"
        return f"{self.name}: {figures} ({self.source}; {self.date}); {known}"


def load_topology(name_or_path: str) -> Topology:
    """A topology that ships with dpbench by its name, or a file: what ends with .toml or contains a
    slash.

    Raises UsageError for a name, file, key or value that cannot be used.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml" and len(path.parts) == 1:
        text = files(__package__).joinpath("topologies.toml").read_text(encoding="utf-8")
        shipped = tomllib.loads(text)
        if name_or_path not in shipped:
            known = [*shipped, "or a path to a .toml file"]
            raise unknown_name("--topology", name_or_path, known)
        return Topology(name=name_or_path, **shipped[name_or_path])
    try:
        return Topology(**{"name": path.stem, **tomllib.loads(path.read_text(encoding="utf-8"))})
    except OSError as error:
        raise UsageError(f"{path}: cannot read the topology ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: expected a TOML file ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        got = "" if first["type"] in ("missing", "value_error") else f", got {first['input']!r}"
        raise UsageError(f"{path}: {place}{': ' if place else ''}{first['msg']}{got}") from None


def flat_network(gigabytes_per_second: float, latency_us: float) -> Topology:
    """One rank per node, and the same link for each."""
    return Topology(
        name=f"{gigabytes_per_second:g} GB/s, {latency_us:g} µs",
        ranks_per_node=1,
        inter=Link(latency_us=latency_us, gigabytes_per_second=gigabytes_per_second),
        source="command line",
        date=date.today(),
    )
