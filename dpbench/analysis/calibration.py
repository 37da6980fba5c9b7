"""How much whole runs of the same thing differ on this machine, and what that lets a check see."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2

from dpbench.analysis.comparison import compare
from dpbench.analysis.detectable import minimum_detectable_effect, repetitions_for
from dpbench.analysis.estimate import CONFIDENCE, Estimate
from dpbench.analysis.matching import Side, match
from dpbench.analysis.metrics import METRICS
from dpbench.analysis.outcome import effective_status
from dpbench.analysis.throughput import is_measured, throughput
from dpbench.analysis.verdict import judge
from dpbench.environment import Environment
from dpbench.errors import UsageError
from dpbench.records import Status, TrialRecord
from dpbench.specs import TrialSpec

REPETITIONS = (3, 5, 10, 20)
TOLERANCES = (0.01, 0.03, 0.05, 0.10)
SUPPORTED = (0.03, 0.05, 0.10, 0.15, 0.20, 0.30, 0.50)
FEWEST = 4
"""Two halves with a spread each."""
BLOCK = (0, 1, 1, 0)
"""Which half a repetition belongs to: ABBA, so that a steady drift favours neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The spread between runs of one configuration."""

    label: str
    spread: Estimate
    """Standard deviation of the logarithms of its throughputs: 0.01 is 1 %."""

    def tolerance(self, repetitions: int) -> float:
        """The smallest tolerance that so many runs a side support."""
        return minimum_detectable_effect(self.spread.value, repetitions)

    def repetitions(self, tolerance: float) -> int | None:
        """Runs a side that a tolerance takes; None beyond a million."""
        return repetitions_for(self.spread.value, tolerance)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """A check of one half of the repetitions against the other, which nothing separates."""

    tolerance: float
    repetitions: int
    """Of each half."""
    outcomes: Mapping[str, int]
    """How many rows came out as regressed, pass, inconclusive; both halves were the candidate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The noise of every configuration, and what a check of all of them can hold."""

    rows: tuple[Noise, ...]
    supported: tuple[float, int] | None
    """The smallest of `SUPPORTED` that up to 20 runs a side support, and how many of them; None
    if even the largest would take more."""
    rehearsal: Rehearsal | None
    """With the supported tolerance."""

    @property
    def noisiest(self) -> Noise:
        """The row that decides, because every row has to pass."""
        return _noisiest(self.rows)


def calibrate(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> Calibration:
    """Raises UsageError if no configuration has completed at least four repetitions."""
    runs = [r for r in records if effective_status(r) is Status.COMPLETED and is_measured(r)]
    groups: dict[TrialSpec, list[TrialRecord]] = {}
    for record in runs:
        groups.setdefault(record.trial.configuration, []).append(record)
    enough = {spec: group for spec, group in groups.items() if len(group) >= FEWEST}
    if not enough:
        most = max(map(len, groups.values()), default=0)
        raise UsageError(
            f"no configuration has completed {FEWEST} repetitions (the most is {most}); measure "
            "with --repetitions 10"
        )
    rows = tuple(
        Noise(label=spec.label, spread=spread([throughput(record) for record in group]))
        for spec, group in enough.items()
    )
    halves = _halves([record for group in enough.values() for record in group], environments)
    supported = _supported(_noisiest(rows))
    return Calibration(
        rows=rows,
        supported=supported,
        rehearsal=None if supported is None else _rehearse(*halves, supported[0]),
    )


def spread(values: Sequence[float]) -> Estimate:
    """Standard deviation of logarithms with its chi-square interval.

    (r - 1) s² / σ² is chi-square with r - 1 degrees of freedom for normal logarithms: from 10 runs
    the interval goes from 0.69 s to 1.83 s.
    """
    freedom = len(values) - 1
    value = float(np.std(np.log(values), ddof=1))
    tail = (1 - CONFIDENCE) / 2
    return Estimate(
        value=value,
        low=value * math.sqrt(freedom / chi2.isf(tail, freedom)),
        high=value * math.sqrt(freedom / chi2.ppf(tail, freedom)),
        unit="of the throughput",
        sample_size=len(values),
        basis="repetitions",
    )


def _noisiest(rows: Sequence[Noise]) -> Noise:
    return max(rows, key=lambda row: row.spread.value)


def _supported(noisiest: Noise) -> tuple[float, int] | None:
    for tolerance in SUPPORTED:
        needed = noisiest.repetitions(tolerance)
        if needed is not None and needed <= REPETITIONS[-1]:
            return tolerance, next(n for n in REPETITIONS[1:] if n >= needed)
    return None


def _halves(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> tuple[Side, Side]:
    """Two sides of one sweep whose passes alternate, as a check with --against measures them."""
    first, second = (
        Side(
            label=f"half {half + 1}",
            records=tuple(
                replace(record, trial=replace(record.trial, repetition=number // 2))
                for record in records
                for number in (record.trial.repetition,)
                if BLOCK[number % 4] == half
            ),
            environments=environments,
            source="rehearsal",
        )
        for half in (0, 1)
    )
    return first, second


def _rehearse(first: Side, second: Side, tolerance: float) -> Rehearsal:
    metric = METRICS["images_per_second"]
    rows = [
        row
        for sides in ((first, second), (second, first))
        for row in judge(compare(match(*sides), metric), tolerance).rows
    ]
    sizes = [row.comparison.slowdown.sample_size for row in rows if row.comparison.slowdown]
    return Rehearsal(
        tolerance=tolerance,
        repetitions=min(sizes),
        outcomes={
            outcome: sum(row.outcome == outcome for row in rows)
            for outcome in ("regressed", "pass", "inconclusive")
        },
    )
