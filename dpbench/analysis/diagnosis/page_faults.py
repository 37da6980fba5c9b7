"""The cost of page faults, and whether keeping freed memory is worth it.

glibc gives freed memory back to the kernel and takes it again, a page fault for every page: on the
CPU that can be a tenth of a training step. Where a sweep measured both allocators the gain is a
measurement; elsewhere many page faults are a reason to measure it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from dpbench import units
from dpbench.analysis.configuration import usable_repetitions
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.resources import page_faults_per_step
from dpbench.analysis.scaling import Speed, gain
from dpbench.analysis.throughput import step_seconds
from dpbench.records import TrialRecord
from dpbench.specs import KEEP, SYSTEM, TrialSpec

FAULT_SECONDS = 0.5e-6
"""Least time to map and clear a page of 4 KiB; on virtual machines it may be three times as
much."""
LARGE = 0.05
"""Smallest share of a step whose page faults are worth advice."""
OPTION = "--allocator keep"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryAdvice:
    """Rows that would or may be faster if their ranks kept the memory that they free."""

    page_faults: float
    """Page faults per step with the system's allocator; the largest of these rows."""
    text: str


def memory_advice(
    groups: Mapping[TrialSpec, Sequence[TrialRecord]],
) -> tuple[MemoryAdvice, ...]:
    """Advice for measured gains first; then one line for all rows whose gain was not measured.

    `groups` holds the trials of each configuration.
    """
    usable = {spec: found for spec, group in groups.items() if (found := usable_repetitions(group))}
    measured, unknown = [], {}
    for spec, group in usable.items():
        faults = _page_faults(group)
        if spec.allocator != SYSTEM or faults is None:
            continue
        kept = usable.get(replace(spec, allocator=KEEP))
        if kept is not None:
            faster = gain(Speed.of(group), Speed.of(kept))
            if faster.interval is not None and faster.interval[0] > 1:
                measured.append(_gained(spec, faults, _page_faults(kept), faster))
        elif faults * FAULT_SECONDS >= LARGE * _mean_step_seconds(group):
            unknown[spec.label] = faults
    return (*measured, *_to_measure(unknown))


def _gained(
    spec: TrialSpec, faults: float, faults_kept: float | None, found: Estimate
) -> MemoryAdvice:
    left = "" if faults_kept is None else f", {faults_kept:,.0f} with it"
    low, high = found.interval or (found.value, found.value)
    text = (
        f"{spec.label}: {OPTION} makes it {units.percent(found.value - 1)} faster (95 % interval "
        f"{units.percent(low - 1)} to {units.percent(high - 1)}; {faults:,.0f} page faults per "
        f"step without it{left}); dpbench train and dpbench launch keep freed memory by default"
    )
    return MemoryAdvice(page_faults=faults, text=text)


def _to_measure(rows: Mapping[str, float]) -> list[MemoryAdvice]:
    if not rows:
        return []
    label, most = max(rows.items(), key=lambda item: item[1])
    others = f" (and {units.counted(len(rows) - 1, 'more row')})" if len(rows) > 1 else ""
    text = (
        f"{label}{others}: {most:,.0f} page faults per step, as the C library gives freed memory "
        f"back and takes it again; measure what keeping it gains: --allocator {SYSTEM},{KEEP}"
    )
    return [MemoryAdvice(page_faults=most, text=text)]


def _page_faults(group: Sequence[TrialRecord]) -> float | None:
    known = [count for record in group if (count := page_faults_per_step(record)) is not None]
    return fmean(known) if known else None


def _mean_step_seconds(group: Sequence[TrialRecord]) -> float:
    return fmean(float(step_seconds(record).mean()) for record in group)
