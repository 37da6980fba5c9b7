"""The hook hierarchical against gloo: two network namespaces, several ranks in each, a slow link.

With g ranks on each of two hosts gloo's ring sends 2 (2g - 1) ÷ 2g of a bucket over the link, and
the hook sends it once: 0.67 of gloo's bytes with two ranks on a host, 0.57 with four.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.multi_node.all_reduce_program import all_reduces
from tests.multi_node.hosts import two_hosts, unusable_reason
from tools.benchmarks.paired import Figure, Ratio, alternate, at_most

BUCKET_BYTES = 25_000_000
ROUNDS = 4
CASES = {"2 + 2 ranks, 1 Gbit/s": (1e9, 2, 10), "4 + 4 ranks, 200 Mbit/s": (200e6, 4, 3)}
"""The rate of the link in bits per second, ranks on each host, and calls of a block."""
MOST_TIME, MOST_BYTES = 0.85, 1.05


def run(cases: str = "") -> Iterator[Figure]:
    if (reason := unusable_reason()) is not None:
        yield Figure("hierarchical between hosts", reason, "needs two network namespaces", False)
        return
    for case, (rate, ranks, calls) in CASES.items():
        if cases not in case:
            continue
        sent: list[float] = []
        one_side = partial(_seconds, rate, ranks, calls, sent)
        seconds = alternate(
            {way: partial(one_side, way) for way in ("hierarchical", "gloo")}, ROUNDS
        )
        ratio = Ratio.of(seconds["hierarchical"], seconds["gloo"])
        yield at_most(MOST_TIME, ratio, f"all-reduce of 25 MB, hierarchical ÷ gloo ({case})")
        yield Figure(
            name=f"bytes that leave a host ÷ those of one rank, hierarchical ({case})",
            value=f"{max(sent):.3f} at most",
            wanted=f"wanted ≤ {MOST_BYTES:g}",
            met=max(sent) <= MOST_BYTES,
        )


def _seconds(rate: float, ranks: int, calls: int, sent: list[float], way: str) -> float:
    with two_hosts(bits_per_second=rate) as hosts:
        (crossings,) = all_reduces(
            hosts, way, ranks_per_host=ranks, nbytes=BUCKET_BYTES, times=calls
        )
    if way == "hierarchical":
        sent.extend(crossings.sent_shares)
    return crossings.seconds
