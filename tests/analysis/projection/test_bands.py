"""The law of `project` on published series: what it gets right, and the bands that follow.

Each series withholds its larger group sizes, and the law predicts them from every prefix of two or
more. A band is conformal: order statistics of these errors, of which steps across the boundary from
one node to several are a set of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest

from dpbench.analysis.projection.law import (
    ACROSS_NODES,
    MAX_MULTIPLE,
    WITHIN_NODE,
    Band,
    continued,
    crosses,
)
from dpbench.analysis.rows import Row, published_rows
from tests.analysis.projection.sweeps import PUBLISHED

SCALING = Path(__file__).parents[3] / "docs" / "scaling.md"


Error = tuple[tuple[object, ...], float, float, float]
"""Of a withheld group size: its series, ln(measured ÷ predicted step time), that ÷ its scale, and
ln(measured ÷ predicted) if the last efficiency is kept."""


def errors(*, across: bool) -> list[Error]:
    """All errors within a node, or across its boundary."""
    curves: dict[tuple[object, ...], list[Row]] = {}
    for table in ("weak_scaling.csv", "scaling_series.csv"):
        for row in published_rows(PUBLISHED / table):
            key = (table, row.published.source, row.implementation, row.batch_size)
            curves.setdefault(key, []).append(row)
    found = list[Error]()
    for series, rows in curves.items():
        sizes = [row.group_size for row in rows]
        seconds = [row.group_size / row.throughput.value for row in rows if row.throughput]
        per_node = rows[0].published.gpus_per_node or 1
        for place, n in enumerate(sizes):
            for count in range(2, place + 1):
                known = sizes[:count]
                if n <= MAX_MULTIPLE * known[-1] and crosses(known, n, per_node) is across:
                    log_seconds, _, scale = continued(known, seconds[:count], n)
                    error = math.log(seconds[place]) - log_seconds
                    kept = math.log(seconds[place] / seconds[count - 1])
                    found.append((series, error, error / scale, kept))
    return found


def calibrated(found: Sequence[Error], *, across: bool) -> tuple[float, float, float]:
    """(Low, middle, high): the next of m such errors lies between the ⌊0.05 (m+1)⌋-th from both
    ends with 90 % or more (split conformal prediction)."""
    ordered = sorted(scaled for _, _, scaled, _ in found)
    middle, tail = median(ordered) if across else 0.0, math.floor(0.05 * (len(ordered) + 1) + 1e-9)
    return min(middle, ordered[tail - 1]), middle, max(middle, ordered[-tail])


@pytest.mark.parametrize(
    ("name", "band"), [("within a node", WITHIN_NODE), ("across its boundary", ACROSS_NODES)]
)
def test_bands_are_of_published_series_and_hold_on_those_they_do_not_know(
    name: str, band: Band
) -> None:
    found, across = errors(across=band is ACROSS_NODES), band is ACROSS_NODES
    all_series, inside = {series for series, *_ in found}, 0
    for one in all_series:
        low, _, high = calibrated([error for error in found if error[0] != one], across=across)
        inside += sum(low <= scaled <= high for series, _, scaled, _ in found if series == one)
    low, middle, high = calibrated(found, across=across)
    assert band == Band(low=low, middle=middle, high=high, inside=inside, predictions=len(found))
    assert 0.86 <= inside / len(found) <= 0.94
    law, kept = (median(abs(error[place]) for error in found) for place in (1, 3))
    shown = f"{law:.1%} | {kept:.1%} | {inside} of {len(found)}".replace("%", " %")
    row = f"| {name} | {len(found)} on {len(all_series)} series | {shown} |"
    assert row in SCALING.read_text()
