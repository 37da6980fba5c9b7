"""Precision of a speed over repetitions, and whether these are one group of runs or two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dpbench import units
from dpbench.analysis.configuration import by_configuration, usable_repetitions
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.throughput import throughput
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec

FEWEST_RUNS = 4
"""Fewest runs: two in each group, as a single one is an outlier."""
SMALLEST_GAP = 0.03
"""Smallest relative gap between the speeds of the groups that matters."""
GAP_OF_FEWEST, FALL, LEAST_GAP = 8.0, 1.6, 1.5
"""Gap between the groups ÷ the wider of them: at 4 runs, how fast the limit falls with more of
them, and where it stops. Chance leaves smaller gaps among more runs, and groups of more runs are
wider, so that one limit for all would miss what many runs show best. About 1 % of normal runs have
such a gap, whether 4 or 20 of them (seeded test)."""


def too_wide(records: Iterable[TrialRecord], precision: float) -> frozenset[TrialSpec]:
    """The configurations whose speed is not known to ± `precision` (a fraction) yet: the larger
    side of its interval, over at least two repetitions, is wider."""
    found = set()
    for spec, group in by_configuration(records).items():
        speeds = [throughput(record) for record in usable_repetitions(group)]
        width = LogMean.of_runs(speeds).estimate("").half_width if speeds else 0.0
        if width is None or width > precision * LogMean.of_runs(speeds or [1.0]).value:
            found.add(spec)
    return frozenset(found)


def precision_note(rows: Sequence[tuple[str, Estimate | None]], precision: float) -> str:
    """Note on the requested and the reached precision, from the (label, throughput) of each row."""
    asked = f"--precision {units.exact_percent(precision)}"
    reached = {
        label: speed.half_width / speed.value
        for label, speed in rows
        if speed is not None and speed.basis == "repetitions" and speed.half_width is not None
    }
    if not reached:
        return f"{asked}: no row has the two repetitions that an interval needs"
    wide = [
        f"{label} (± {units.fixed_percent(width, 1)})"
        for label, width in reached.items()
        if width > precision
    ]
    unknown = [label for label, _ in rows if label not in reached]
    rest = f"; not known, for want of two repetitions, in {'; '.join(unknown)}" if unknown else ""
    if wide:
        return f"{asked} is not reached within the budget by {'; '.join(wide)}{rest}"
    where = "the other rows" if unknown else "every row"
    widest = 100 * max(reached.values())
    return f"{asked} is reached in {where}; the widest interval is ± {widest:.2g} %{rest}"


def two_modes(speeds: Sequence[float]) -> tuple[float, float] | None:
    """Mean speeds of the slower and of the faster group; None if runs form one group."""
    count = len(speeds)
    if count < FEWEST_RUNS:
        return None
    ordered = np.sort(np.asarray(speeds, dtype=np.float64))
    split = max(range(2, count - 1), key=lambda place: ordered[place] - ordered[place - 1])
    low, high = ordered[:split], ordered[split:]
    gap = high[0] - low[-1]
    chance = max(LEAST_GAP, GAP_OF_FEWEST * (FEWEST_RUNS / count) ** FALL)
    if gap < max(SMALLEST_GAP * ordered.mean(), chance * max(np.ptp(low), np.ptp(high))):
        return None
    return float(low.mean()), float(high.mean())
