"""What the times of collectives say about bandwidth, as nccl-tests defines it.

algbw = bytes ÷ seconds
busbw = algbw × factor

The factor makes the number independent of the group size: it is what each link would carry if the
ranks passed the bytes round a ring (nccl-tests, doc/PERFORMANCE.md). Of trees and of switches that
add up on the way it is not what the wires carry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BusFactor:
    """busbw ÷ algbw."""

    formula: str
    of: Callable[[int], float]
    """Its value for a number of ranks."""


TWICE = BusFactor(formula="2 (ranks - 1) ÷ ranks", of=lambda ranks: 2 * ((ranks - 1) / ranks))
ONCE = BusFactor(formula="(ranks - 1) ÷ ranks", of=lambda ranks: (ranks - 1) / ranks)
WHOLE = BusFactor(formula="1", of=lambda _: 1.0)
BUS_FACTORS = {
    "all_reduce": TWICE,
    "all_gather": ONCE,
    "reduce_scatter": ONCE,
    "all_to_all": ONCE,
    "gather": ONCE,
    "scatter": ONCE,
    "broadcast": WHOLE,
    "reduce": WHOLE,
    "send_recv": WHOLE,
}
"""Of every collective of nccl-tests."""


def bus_factor(collective: str, group_size: int) -> float:
    """Of one rank, that has nobody to talk to, 0 unless it is always 1."""
    if group_size < 1:
        raise ValueError(f"a group has at least one rank, got {group_size}")
    return BUS_FACTORS[collective].of(group_size)


def algorithm_bandwidth(nbytes: float, seconds: float) -> float:
    """Bytes per second of the message as the caller sees it; of a gather, of the whole."""
    return nbytes / seconds
