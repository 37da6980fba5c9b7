"""Measurements of collectives: what to run, what happened.

A line of collectives.jsonl holds one CollectiveRecord: one collective on one backend and group
size, over a range of message sizes, by ranks of its own. Sizes are bytes as nccl-tests counts
them: of all_gather and reduce_scatter the whole, of which each rank holds 1/n.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from dpbench.codec import Float
from dpbench.records.trial import Record
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
    threads_per_replica: int
    samples: int = 20
    """Timed samples of each size; small messages take several calls a sample."""
    repetition: int = 0

    @property
    def configuration(self) -> CollectiveSpec:
        """The settings that its repetitions share, as the first of them has them."""
        return replace(self, repetition=0)

    @property
    def label(self) -> str:
        """Name for people: "all_reduce on gloo ×2"."""
        return f"{self.collective} on {self.backend} ×{self.group_size}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeTiming:
    """Seconds of one call at one message size on one rank, a value per sample.

    All ranks leave a barrier before each sample; its calls follow each other, and the device has
    finished them when the clock is read.
    """

    nbytes: int
    calls_per_sample: int
    seconds: tuple[float, ...]
    largest_error: Float
    """Largest error of this rank's result on values that have to be rounded, relative to exact
    arithmetic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveRecord(Record):
    """The record of one CollectiveSpec: a line of collectives.jsonl.

    Its results were compared with what they must be, for every size; a wrong one is `failed`, with
    the size in the reason, and no time of it is recorded.
    """

    collective: CollectiveSpec
    ranks: tuple[tuple[SizeTiming, ...], ...] = ()
    """The timings of each rank, in the order of the sizes."""
