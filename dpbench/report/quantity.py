"""What both sides of a comparison measured, in the unit that people read it in."""

from __future__ import annotations

from dpbench.analysis.estimate import Estimate
from dpbench.report.numbers import compact, compact_time, memory, percentage, plus_minus
from dpbench.report.table import MISSING


def quantity(estimate: Estimate | None, *, header: str = "") -> str:
    """Writes "1.23(4) ms", "297 MiB", "86 ± 2 %", "1,337 ± 15 images/s"; a rate that stands in the
    header of its column goes without its unit."""
    if estimate is None:
        return MISSING
    if estimate.unit == "s":
        return compact_time(estimate)
    if estimate.unit == "B":
        return memory(estimate.value)
    if estimate.unit == "of linear":
        return percentage(estimate)
    if estimate.unit.endswith("/s"):
        number = plus_minus(estimate, plain_decimals=1)
        return number if f"({estimate.unit})" in header else f"{number} {estimate.unit}"
    return compact(estimate)


def sample_sizes(repetitions: tuple[int, int]) -> str:
    """Writes "5"; "5, 2" where baseline and candidate differ."""
    return ", ".join(map(str, dict.fromkeys(repetitions)))
