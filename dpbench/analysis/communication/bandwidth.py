"""What the times of collectives say about bandwidth, as nccl-tests defines it.

algbw = bytes ÷ seconds
busbw = algbw × factor

The factor makes the number independent of the group size: it is what each link would carry if the
ranks passed the bytes round a ring (nccl-tests, doc/PERFORMANCE.md). Of trees and of switches that
add up on the way it is not what the wires carry.
"""

from __future__ import annotations

from dpbench.collectives import Collective


def bus_factor(collective: Collective, group_size: int) -> float:
    """busbw ÷ algbw; of one rank, that has nobody to talk to, 0 except for a broadcast."""
    if group_size < 1:
        raise ValueError(f"a group has at least one rank, got {group_size}")
    share = (group_size - 1) / group_size
    factors: dict[Collective, float] = {
        "all_reduce": 2 * share,
        "all_gather": share,
        "reduce_scatter": share,
        "broadcast": 1.0,
    }
    return factors[collective]


def algorithm_bandwidth(nbytes: float, seconds: float) -> float:
    """Bytes per second of the message as the caller sees it; of a gather, of the whole."""
    return nbytes / seconds
