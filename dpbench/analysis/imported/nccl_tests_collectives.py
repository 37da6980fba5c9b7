"""The collectives of nccl-tests: what their programs are called, and what their columns say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dpbench.analysis.communication.bandwidth import bus_factor


@dataclass(frozen=True, slots=True)
class NcclTestsCollective:
    """One of its programs."""

    name: str
    """What dpbench calls it."""
    program: str
    """Without "_perf"."""
    reduces: bool | None
    """None: its column says either."""
    rooted: bool


OF_NCCL_TESTS = {
    one.name: one
    for one in (
        NcclTestsCollective("all_reduce", "all_reduce", reduces=True, rooted=False),
        NcclTestsCollective("all_gather", "all_gather", reduces=False, rooted=False),
        NcclTestsCollective("reduce_scatter", "reduce_scatter", reduces=True, rooted=False),
        NcclTestsCollective("broadcast", "broadcast", reduces=False, rooted=True),
        NcclTestsCollective("reduce", "reduce", reduces=True, rooted=True),
        NcclTestsCollective("all_to_all", "alltoall", reduces=False, rooted=False),
        NcclTestsCollective("gather", "gather", reduces=False, rooted=True),
        NcclTestsCollective("scatter", "scatter", reduces=False, rooted=True),
        NcclTestsCollective("send_recv", "sendrecv", reduces=None, rooted=False),
    )
}
BY_PROGRAM = {one.program: one for one in OF_NCCL_TESTS.values()}

Printed = tuple[str | None, int | None, float, float]
"""Reduction, root, algbw and busbw of a line."""
DECIMALS = 0.0051
"""Bandwidths are printed with two decimals."""


def fitting(ranks: int | None, printed: Iterable[Printed]) -> list[NcclTestsCollective]:
    """Those that may have printed such lines."""
    lines = list(printed)
    return [
        one for one in OF_NCCL_TESTS.values() if all(_fits(one, ranks, *line) for line in lines)
    ]


def _fits(
    one: NcclTestsCollective,
    ranks: int | None,
    reduction: str | None,
    root: int | None,
    algbw: float,
    busbw: float,
) -> bool:
    if one.reduces not in (None, reduction is not None) or one.rooted is (root is None):
        return False
    if ranks is None:
        return True
    factor = bus_factor(one.name, ranks)
    return abs(busbw - factor * algbw) <= DECIMALS * (1 + factor)
