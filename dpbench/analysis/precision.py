"""Precision of a speed over repetitions, and whether these are one group of runs or two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dpbench import units
from dpbench.analysis.configuration import by_configuration, usable_repetitions
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.throughput import throughput_mean
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


def relative_half_widths(records: Iterable[TrialRecord]) -> dict[TrialSpec, float | None]:
    """The larger side of the throughput's interval ÷ its value, per configuration that has a speed.

    None if fewer than two repetitions completed: the spread between runs is unknown. Configurations
    without any speed are left out.
    """
    groups = by_configuration(records)
    usable = {spec: usable_repetitions(group) for spec, group in groups.items()}
    return {spec: _half_width(group) for spec, group in usable.items() if group}


def too_wide(records: Iterable[TrialRecord], precision: float) -> frozenset[TrialSpec]:
    """The configurations whose speed is not known to ± `precision` (a fraction) yet."""
    widths = relative_half_widths(records)
    return frozenset(s for s, width in widths.items() if width is None or width > precision)


def precision_note(rows: Sequence[tuple[str, Estimate | None]], precision: float) -> str:
    """Note on the requested and the reached precision, from the (label, throughput) of each row."""
    asked = f"--precision {units.exact_percent(precision)}"
    reached = [
        (label, speed.half_width / speed.value)
        for label, speed in rows
        if speed is not None and speed.basis == "repetitions" and speed.half_width is not None
    ]
    known = {label for label, _ in reached}
    if not reached:
        return f"{asked}: no row has the two repetitions that an interval needs"
    wide = [
        f"{label} (± {units.fixed_percent(width, 1)})"
        for label, width in reached
        if width > precision
    ]
    unknown = [label for label, _ in rows if label not in known]
    rest = f"; not known, for want of two repetitions, in {'; '.join(unknown)}" if unknown else ""
    if wide:
        return f"{asked} is not reached within the budget by {'; '.join(wide)}{rest}"
    widest = max(width for _, width in reached)
    where = "the other rows" if unknown else "every row"
    return f"{asked} is reached in {where}; the widest interval is ± {100 * widest:.2g} %{rest}"


def _half_width(group: Sequence[TrialRecord]) -> float | None:
    if len(group) < 2:
        return None
    speed = throughput_mean(group).estimate("items/s")
    return None if speed.half_width is None else speed.half_width / speed.value


def two_modes(speeds: Sequence[float]) -> tuple[float, float] | None:
    """Mean speeds of the slower and of the faster group; None if runs form one group."""
    if len(speeds) < FEWEST_RUNS:
        return None
    ordered = np.sort(np.asarray(speeds, dtype=np.float64))
    splits = range(2, len(ordered) - 1)
    split = max(splits, key=lambda place: ordered[place] - ordered[place - 1])
    low, high = ordered[:split], ordered[split:]
    gap = high[0] - low[-1]
    widest = max(np.ptp(low), np.ptp(high))
    if gap < SMALLEST_GAP * ordered.mean() or gap < _limit(len(ordered)) * widest:
        return None
    return float(low.mean()), float(high.mean())


def _limit(count: int) -> float:
    chance: float = GAP_OF_FEWEST * (FEWEST_RUNS / count) ** FALL
    return max(LEAST_GAP, chance)
