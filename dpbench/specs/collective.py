"""What `dpbench comm` measures: one collective over a range of message sizes.

Sizes are bytes as nccl-tests counts them: of all_gather and reduce_scatter the whole, of which each
rank holds 1/n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dpbench.specs.nodes import ReplicaCount

Collective = Literal["all_reduce", "broadcast", "all_gather", "reduce_scatter"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
IN_PARTS: tuple[Collective, ...] = ("all_gather", "reduce_scatter")
"""Collectives of which each rank holds an equal part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveSpec:
    """One collective over a range of sizes of float32 values, in processes of its own."""

    collective: Collective
    backend: str
    group_size: ReplicaCount
    devices: tuple[str, ...]
    """The device of each rank."""
    sizes_bytes: tuple[int, ...]
    """Rising."""
    threads: int
    samples: int = 20
    """Timed samples of each size; small messages take several calls a sample."""
    repetition: int = 0

    @property
    def label(self) -> str:
        """Name for people, of all repetitions: "all_reduce on gloo ×2"."""
        return f"{self.collective} on {self.backend} ×{self.group_size}"
