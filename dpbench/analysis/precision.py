"""Precision of a speed over repetitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpbench import units
from dpbench.analysis.configuration import by_configuration, usable_repetitions
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.throughput import throughput
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec


def too_wide(records: Iterable[TrialRecord], precision: float) -> frozenset[TrialSpec]:
    """The configurations whose speed is not known to ± `precision` (a fraction) yet: the larger
    side of its interval, over at least two repetitions, is wider."""
    found = set()
    for spec, group in by_configuration(records).items():
        speeds = [throughput(record) for record in usable_repetitions(group)]
        if not speeds:
            continue
        speed = LogMean.of_runs(speeds).estimate("")
        if speed.half_width is None or speed.half_width > precision * speed.value:
            found.add(spec)
    return frozenset(found)


def precision_note(rows: Sequence[tuple[str, Estimate | None]], precision: float) -> str:
    """Note on the requested and the reached precision, from the (label, throughput) of each row."""
    asked = f"--precision {units.exact_percent(precision)}"
    missed, widest = [], 0.0
    for label, speed in rows:
        if speed is None or speed.basis != "repetitions" or speed.half_width is None:
            missed.append(f"{label} (no interval)")
            continue
        width = speed.half_width / speed.value
        widest = max(widest, width)
        if width > precision:
            missed.append(f"{label} (± {units.fixed_percent(width, 1)})")
    if missed:
        return f"{asked} is not reached within the budget by {'; '.join(missed)}"
    return f"{asked} is reached in every row; the widest interval is ± {100 * widest:.2g} %"
