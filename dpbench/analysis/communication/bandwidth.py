"""Bandwidths of collectives, as nccl-tests defines them.

algbw = bytes ÷ seconds, and busbw = algbw × factor. The factor makes the number independent of the
group size: it is what each link would carry if the ranks passed the bytes round a ring (nccl-tests,
doc/PERFORMANCE.md). It is not what the wires carry where trees are used, or switches that add up on
the way.
"""

from __future__ import annotations

BUS_FORMULAS = {
    "all_reduce": "2 (ranks - 1) ÷ ranks",
    "all_gather": "(ranks - 1) ÷ ranks",
    "reduce_scatter": "(ranks - 1) ÷ ranks",
    "broadcast": "1",
}
"""busbw ÷ algbw of all collectives that are measured."""


def bus_factor(collective: str, group_size: int) -> float:
    """busbw ÷ algbw; a single rank, which has nobody to talk to, has 0 unless it is always 1."""
    part = (group_size - 1) / group_size
    return {"all_reduce": 2 * part, "broadcast": 1.0}.get(collective, part)
