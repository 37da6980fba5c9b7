"""How much whole runs of the same thing differ on this machine, and what that lets a check see.

The check is one that measures: it may look at its data again, so each look is at ALPHA_OF_A_LOOK.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.comparison import Comparison, compare
from dpbench.analysis.differences import minimum_detectable_effect, repetitions_for
from dpbench.analysis.distributions import chi_square_quantile_above
from dpbench.analysis.estimate import CONFIDENCE, Estimate
from dpbench.analysis.fields.levels import METRICS
from dpbench.analysis.matching import Side, match
from dpbench.analysis.outcome import by_configuration, usable_repetitions
from dpbench.analysis.throughput import throughput
from dpbench.analysis.verdict import ALPHA_OF_A_LOOK, judge
from dpbench.environment import Environment
from dpbench.errors import UsageError
from dpbench.records import TrialRecord

REPETITIONS = (3, 5, 10, 20)
TOLERANCES = (0.01, 0.03, 0.05, 0.10)
SUPPORTED = (0.03, 0.05, 0.10, 0.15, 0.20, 0.30, 0.50)
FEWEST = 4
"""Two halves with a spread each."""
BLOCK = (0, 1, 1, 0)
"""Which half a completed repetition belongs to: ABBA, so that a steady drift favours neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The spread between runs of one configuration."""

    label: str
    spread: Estimate
    """Standard deviation of the logarithms of its throughputs: 0.01 is 1 %."""

    def tolerance(self, repetitions: int) -> float:
        """The smallest tolerance that so many runs a side support."""
        return minimum_detectable_effect(self.spread.value, repetitions, ALPHA_OF_A_LOOK)

    def repetitions(self, tolerance: float) -> int | None:
        """Runs a side that a tolerance takes; None beyond a million."""
        return repetitions_for(self.spread.value, tolerance, ALPHA_OF_A_LOOK)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """A check of one half of the repetitions against the other, which nothing separates."""

    tolerance: float
    repetitions: int
    """Of each half."""
    outcomes: Mapping[str, int]
    """How many rows came out as regressed, pass, inconclusive; both halves were the candidate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Occasions:
    """The same sweep on two occasions, as a stored baseline and what is measured after it."""

    earlier: str
    tolerance: float
    rows: tuple[Comparison, ...]
    hold: bool
    """Whether each row passes with the tolerance, whichever occasion is the candidate's."""

    @property
    def largest(self) -> float:
        """How far the speeds of a row moved at most: 0.03 is 3 %."""
        moved = [abs(math.log(row.slowdown.value)) for row in self.rows if row.slowdown]
        return math.expm1(max(moved, default=0.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The noise of every configuration, and what a check of all of them can hold."""

    rows: tuple[Noise, ...]
    supported: tuple[float, int] | None
    """The smallest of `SUPPORTED` that up to 20 runs a side support, and how many of them; None
    if even the largest would take more."""
    rehearsal: Rehearsal | None
    """With the supported tolerance."""
    occasions: Occasions | None = None
    """None where one occasion was measured, or no tolerance is supported."""

    @property
    def noisiest(self) -> Noise:
        """The row that decides, because every row has to pass."""
        return _noisiest(self.rows)


def calibrate(
    records: Sequence[TrialRecord],
    environments: Mapping[str, Environment],
    earlier: Side | None = None,
) -> Calibration:
    """The noise within the records, and between them and `earlier`, the same on another occasion.

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
    """Every other of the completed repetitions, as if it were a sweep of its own."""
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
