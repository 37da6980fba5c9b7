"""How precisely the speed of a configuration is known, and which ones want more repetitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpbench import units
from dpbench.analysis import throughput
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.outcome import by_configuration, usable_repetitions
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec


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
    speed = throughput.throughput_mean(group).estimate("items/s")
    return None if speed.half_width is None else speed.half_width / speed.value
