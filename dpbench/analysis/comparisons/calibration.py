"""Run-to-run variation of the same thing on this machine, and the tolerance that a check can hold
with it.

The check may add repetitions and look at its data again, so each look is at ALPHA_OF_A_LOOK.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.comparisons.comparison import Comparison, compare
from dpbench.analysis.comparisons.matching import Side, match
from dpbench.analysis.comparisons.power import minimum_detectable_effect, repetitions_for
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, judge
from dpbench.analysis.configuration import by_configuration, usable_repetitions
from dpbench.analysis.estimate import CONFIDENCE, Estimate
from dpbench.analysis.fields.levels import METRICS
from dpbench.analysis.numerics import chi_square_quantile_above
from dpbench.analysis.throughput import throughput
from dpbench.errors import UsageError
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord

REPETITIONS = (3, 5, 10, 20)
TOLERANCES = (0.01, 0.03, 0.05, 0.10)
SUPPORTED = (0.03, 0.05, 0.10, 0.15, 0.20, 0.30, 0.50)
FEWEST = 4
"""Fewest repetitions: two halves, each with a spread."""
BLOCK = (0, 1, 1, 0)
"""Halves to which completed repetitions belong: ABBA, so that a steady drift favours neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The spread between runs of one configuration."""

    label: str
    spread: Estimate
    """Standard deviation of the logarithm of throughput between runs: 0.01 is 1 %."""

    def tolerance(self, repetitions: int) -> float:
        """The smallest tolerance that this number of runs per side supports."""
        return minimum_detectable_effect(self.spread.value, repetitions, ALPHA_OF_A_LOOK)

    def repetitions(self, tolerance: float) -> int | None:
        """Runs per side that a tolerance needs; None beyond a million."""
        return repetitions_for(self.spread.value, tolerance, ALPHA_OF_A_LOOK)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """A check of one half of the repetitions against the other; there is no true difference."""

    tolerance: float
    repetitions: int
    """Repetitions in each half."""
    outcomes: Mapping[str, int]
    """Number of rows that were regressed, pass or inconclusive; each half was the candidate
    once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Occasions:
    """The same sweep on two occasions, like a stored baseline and a later measurement."""

    earlier: str
    tolerance: float
    rows: tuple[Comparison, ...]
    hold: bool
    """Whether each row passes with the tolerance, whichever occasion is the candidate."""

    @property
    def largest(self) -> float:
        """Largest relative change in the speed of a row: 0.03 is 3 %."""
        moved = [abs(math.log(row.slowdown.value)) for row in self.rows if row.slowdown]
        return math.expm1(max(moved, default=0.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The noise of every configuration, and the tolerance that a check of all of them can hold."""

    rows: tuple[Noise, ...]
    supported: tuple[float, int] | None
    """The smallest of `SUPPORTED` that at most 20 runs per side support, and the number of runs;
    None if even the largest would need more."""
    rehearsal: Rehearsal | None
    """Rehearsal with the supported tolerance."""
    occasions: Occasions | None = None
    """Comparison of occasions; None if only one was measured, or no tolerance is supported."""

    @property
    def noisiest(self) -> Noise:
        """The row that decides, since every row has to pass."""
        return _noisiest(self.rows)


def calibrate(
    records: Sequence[TrialRecord],
    environments: Mapping[str, Environment],
    earlier: Side | None = None,
) -> Calibration:
    """The noise within the records, and between them and `earlier`, the same sweep on another
    occasion.

    Raises UsageError if no configuration has completed at least four repetitions, NotComparable if
    the occasions have no configuration in common.
    """
    usable = {spec: usable_repetitions(g) for spec, g in by_configuration(records).items()}
    enough = {spec: group for spec, group in usable.items() if len(group) >= FEWEST}
    if not enough:
        most = max(map(len, usable.values()), default=0)
        raise UsageError(
            f"no configuration has completed {FEWEST} repetitions (the most is {most}); measure "
            "with --repetitions 10"
        )
    rows = tuple(
        Noise(label=spec.label, spread=spread([throughput(record) for record in group]))
        for spec, group in enough.items()
    )
    first, second = (_half(number, [*enough.values()], environments) for number in (0, 1))
    supported = _supported(_noisiest(rows))
    return Calibration(
        rows=rows,
        supported=supported,
        rehearsal=None if supported is None else _rehearse(first, second, supported[0]),
        occasions=None
        if earlier is None or supported is None
        else _between(
            earlier,
            Side(label="now", records=tuple(records), environments=environments),
            supported[0],
        ),
    )


def _between(earlier: Side, now: Side, tolerance: float) -> Occasions:
    metric = METRICS["images_per_second"]
    there, back = compare(match(earlier, now), metric), compare(match(now, earlier), metric)
    verdicts = [judge(rows, tolerance, alpha=ALPHA_OF_A_LOOK) for rows in (there, back)]
    return Occasions(
        earlier=earlier.label,
        tolerance=tolerance,
        rows=there,
        hold=all(verdict.outcome == "pass" for verdict in verdicts),
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
        low=value * math.sqrt(freedom / chi_square_quantile_above(freedom, tail)),
        high=value * math.sqrt(freedom / chi_square_quantile_above(freedom, 1 - tail)),
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


def _half(
    number: int, groups: Sequence[Sequence[TrialRecord]], environments: Mapping[str, Environment]
) -> Side:
    """Every other completed repetition, as if it were a separate sweep."""
    chosen = (
        [r for place, r in enumerate(group) if BLOCK[place % len(BLOCK)] == number]
        for group in groups
    )
    return Side(
        label=f"half {number + 1}",
        records=tuple(record for group in chosen for record in group),
        environments=environments,
    )


def _rehearse(first: Side, second: Side, tolerance: float) -> Rehearsal:
    metric = METRICS["images_per_second"]
    rows = [
        row
        for sides in ((first, second), (second, first))
        for row in judge(compare(match(*sides), metric), tolerance, alpha=ALPHA_OF_A_LOOK).rows
    ]
    return Rehearsal(
        tolerance=tolerance,
        repetitions=min(min(row.comparison.repetitions) for row in rows),
        outcomes={
            outcome: sum(row.outcome == outcome for row in rows)
            for outcome in ("regressed", "pass", "inconclusive")
        },
    )
