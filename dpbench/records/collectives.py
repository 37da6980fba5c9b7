"""Measurements of collectives: what to run, what happened.

A line of collectives.jsonl holds one CollectiveRecord: one collective on one backend and group
size, over a range of message sizes, by ranks of its own. Sizes are bytes as nccl-tests counts
them: of all_gather and reduce_scatter the whole, of which each rank holds 1/n.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from dpbench.codec import Float, content_hash
from dpbench.records.trial import Status

Collective = Literal["all_reduce", "broadcast", "all_gather", "reduce_scatter"]
COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveSpec:
    """One collective over a range of sizes in processes of its own."""

    collective: Collective
    backend: str
    group_size: int
    devices: tuple[str, ...]
    """The device of each rank."""
    sizes_bytes: tuple[int, ...]
    """Rising."""
    threads_per_replica: int
    dtype: str = "float32"
    samples: int = 20
    """Timed samples of each size; small messages take several calls a sample."""
    overlap_sizes_bytes: tuple[int, ...] = ()
    """Sizes that are also measured while every rank computes."""
    exchange_sizes_bytes: tuple[int, ...] = ()
    """Sizes that are also measured as a bucket of gradients in a step; see ExchangeTiming."""
    repetition: int = 0

    @property
    def collective_id(self) -> str:
        return content_hash(self)

    @property
    def configuration(self) -> CollectiveSpec:
        """The specification that repetitions share."""
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
    largest_error: Float | None = None
    """Largest error of this rank's result on values that have to be rounded, relative to exact
    arithmetic; None for copies, and in records from before it was measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapTiming:
    """Times of a collective and a computation, alone and together, on one rank.

    A value per sample. The computation outlasts the collective, which starts with it.
    """

    nbytes: int
    compute_seconds: tuple[float, ...]
    """The computation alone."""
    compute_with_collective_seconds: tuple[float, ...]
    """Seconds of the computation while the collective is running."""
    collective_seconds: tuple[float, ...]
    """The collective alone, from its start to its end."""
    collective_with_compute_seconds: tuple[float, ...]
    """Seconds of the collective while the rank computes, with its end as seen between two
    products."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeTiming:
    """Seconds of what a bucket of gradients costs one rank in a step, a value per sample.

    Between two samples the ranks compute for some milliseconds and use other memory, as they do
    between two steps: caches are cold and threads asleep, which the calls of SizeTiming, one after
    the other, never see.
    """

    nbytes: int
    copy_seconds: tuple[float, ...]
    """Fresh gradients into the flat tensor, divided by the number of ranks: on the thread that
    computes."""
    collective_seconds: tuple[float, ...]
    """Seconds from then until the collective has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCollectives:
    """The measurements of one rank."""

    rank: int
    pid: int
    device: str
    host: str
    """Tells which ranks share one."""
    timings: tuple[SizeTiming, ...]
    copies: tuple[SizeTiming, ...]
    """Copies of as many bytes from one tensor to another by all ranks at once: what the memory
    allows."""
    overlaps: tuple[OverlapTiming, ...] = ()
    exchanges: tuple[ExchangeTiming, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveRecord:
    """The outcome of one CollectiveSpec: a line of collectives.jsonl.

    Its results were compared with what they must be, for every size; a wrong one is `failed`, with
    the size in the reason, and no time of it is recorded.
    """

    collective: CollectiveSpec
    environment_id: str
    started_utc: str
    duration_seconds: float
    status: Status
    reason: str | None = None
    ranks: tuple[RankCollectives, ...] = ()
    tried_again_after: str | None = None
    """Why a first try ended that something outside of it had ended, as kill -9 does."""
