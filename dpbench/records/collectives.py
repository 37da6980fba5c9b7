"""Measurements of collectives: one on one backend and group size, over a range of sizes."""

from __future__ import annotations

from dataclasses import dataclass

from dpbench.codec import Float
from dpbench.records.trial import Record
from dpbench.specs.collective import CollectiveSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeTiming:
    """Seconds of one call at one message size on one rank, a value per sample.

    All ranks leave a barrier before each sample; its calls follow each other, and the device has
    finished them when the clock is read.
    """

    nbytes: int
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

    spec: CollectiveSpec
    ranks: tuple[tuple[SizeTiming, ...], ...] = ()
    """The timings of each rank, in the order of the sizes."""
