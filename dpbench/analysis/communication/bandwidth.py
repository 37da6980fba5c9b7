"""Bandwidths of collectives, as nccl-tests defines them.

algbw = bytes ÷ seconds, and busbw = algbw × factor. The factor makes the number independent of the
group size: it is what each link would carry if the ranks passed the bytes round a ring (nccl-tests,
doc/PERFORMANCE.md). It is not what the wires carry where trees are used, or switches that add up on
the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BusFactor:
    """busbw ÷ algbw."""

    formula: str
    of: Callable[[int], float]
    """The ratio for a number of ranks."""


_PART = BusFactor(formula="(ranks - 1) ÷ ranks", of=lambda ranks: (ranks - 1) / ranks)
_WHOLE = BusFactor(formula="1", of=lambda _: 1.0)
BUS_FACTORS = {
    "all_reduce": BusFactor(
        formula="2 (ranks - 1) ÷ ranks", of=lambda ranks: 2 * ((ranks - 1) / ranks)
    ),
    "all_gather": _PART,
    "reduce_scatter": _PART,
    "broadcast": _WHOLE,
}
"""Bus factors of all collectives that are measured."""


def bus_factor(collective: str, group_size: int) -> float:
    """The bus factor; a single rank, which has nobody to talk to, has 0 unless the factor is always
    1."""
    if group_size < 1:
        raise ValueError(f"a group has at least one rank, got {group_size}")
    return BUS_FACTORS[collective].of(group_size)


def algorithm_bandwidth(nbytes: float, seconds: float) -> float:
    """Bytes per second of the message as the caller sees it; for a gather, of the whole result."""
    return nbytes / seconds
