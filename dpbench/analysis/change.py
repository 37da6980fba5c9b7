"""The change of a number between two groups of runs: the tests behind `compare` and `check`.

A value is one run, never one step: steps of a run are not independent, and treating them as
independent makes four in ten comparisons of a thing with itself look different. What is compared is
a ratio, on logarithms: by Welch's t for runs of two sweeps, by a t test of the ratios within each
repetition for runs of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, variance

from scipy.special import bdtrc, nctdtrinc, stdtr, stdtrit

from dpbench.analysis.estimate import MIN_PAIRS, Estimate, exponential, single_value, t_quantile
from dpbench.analysis.noise import fewest_repetitions

ALPHA = 0.05
"""Level of a test of data that is looked at once."""
POWER = 0.8
"""Probability with which a detectable change is detected."""
EQUAL_LOGARITHMS = 1e-12
"""Logarithms that differ by less are equal."""
PerRepetition = Mapping[int, float]
"""A positive number for each repetition: a throughput, a time or a size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Numbers of the candidate ÷ those of the baseline. `compare` and `check` have costs, such as
    times, of which more is worse; the rows of a sweep have throughputs."""

    baseline: PerRepetition
    candidate: PerRepetition
    is_paired: bool
    """Whether repetitions are compared one by one, as both sides ran in the same passes."""
    log_ratio: float
    """Logarithm of the ratio of the geometric means."""
    error: float | None
    """Standard error of `log_ratio`; None if a side has one run."""
    degrees_of_freedom: float

    @property
    def is_tested(self) -> bool:
        """Whether enough runs were measured for an interval and p-values."""
        return self.error is not None

    @property
    def estimate(self) -> Estimate:
        """The ratio with its 95 % interval, without one where too few runs were measured."""
        if self.error is None:
            return single_value(exponential(self.log_ratio), "×")
        reach = t_quantile(self.degrees_of_freedom) * self.error
        return Estimate(
            value=exponential(self.log_ratio),
            low=exponential(self.log_ratio - reach),
            high=exponential(self.log_ratio + reach),
            unit="×",
            sample_size=min(self.repetitions),
            basis="repetitions",
        )

    @property
    def repetitions(self) -> tuple[int, int]:
        """Number of compared repetitions of the baseline and of the candidate."""
        return len(self.baseline), len(self.candidate)

    @property
    def p_value(self) -> float:
        """p-value of "the two sides differ"."""
        return 2 * min(self.p_above(1.0), self.p_below(1.0))

    def p_above(self, limit: float) -> float:
        """p-value of "the change is above the limit", a ratio such as 1.03; 1 if too few runs were
        measured for a test."""
        return self._p_value(math.log(limit) - self.log_ratio)

    def p_below(self, limit: float) -> float:
        """p-value of "the change is below the limit"."""
        return self._p_value(self.log_ratio - math.log(limit))

    def _p_value(self, distance: float) -> float:
        """Student's t for a distance of logarithms, negative if the claim is true of the mean."""
        if self.error is None:
            return 1.0
        if abs(distance) < EQUAL_LOGARITHMS:
            return 0.5
        if self.error == 0:
            return float(distance > 0)  # runs that are all equal have no error
        return float(stdtr(self.degrees_of_freedom, distance / self.error))

    def is_above(self, limit: float, level: float) -> bool:
        """Whether the change is surely above the limit: by Student's t or by an exact sign test of
        the repetitions, each at half the level."""
        more = sum(ratio > limit for ratio in self._ratios)
        return min(self.p_above(limit), self._sign_test(more)) < level / 2

    def is_below(self, limit: float, level: float) -> bool:
        """Whether it is surely below the limit, by the same tests."""
        fewer = sum(ratio < limit for ratio in self._ratios)
        return min(self.p_below(limit), self._sign_test(fewer)) < level / 2

    @property
    def _ratios(self) -> list[float]:
        """The ratio in each repetition; empty if the sides were not measured in the same ones."""
        return [self.candidate[n] / self.baseline[n] for n in self.baseline if self.is_paired]

    def _sign_test(self, successes: int) -> float:
        """p-value of so many successes in as many fair tosses as there are ratios."""
        return float(bdtrc(successes - 1, len(self.baseline), 0.5)) if self.is_paired else 1.0

    def repetitions_to_settle(self, limit: float, level: float) -> int | None:
        """The fewest runs per side that settle it in 4 of 5 cases, if the candidate is unchanged or
        differs by twice the tolerance; None if out of reach, or if the spread is not known.

        Args:
            limit: 1 + the tolerance.
            level: the level of each one-sided test.
        """
        if self.error is None:
            return None
        spread = self.error / math.sqrt(1 / len(self.baseline) + 1 / len(self.candidate))

        def detectable(count: int) -> float:
            """The smallest change that a one-sided t test detects with probability `POWER`."""
            freedom = (count - 1) * (1 if self.is_paired else 2)
            errors = nctdtrinc(freedom, 1 - POWER, stdtrit(freedom, 1 - level))
            return spread * math.sqrt(2 / count) * float(errors)

        return fewest_repetitions(detectable, math.log(limit))


def change_between(
    baseline: PerRepetition, candidate: PerRepetition, *, ran_in_turn: bool
) -> Change | None:
    """The change of at least one run of each side; None without one.

    In simulation (20,000 sweeps) intervals of pairs cover 0.95, and their width ÷ that of Welch's
    is, at a correlation within pairs of 0, 0.2, 0.5 and 0.9: 1.13, 1.01, 0.81 and 0.37 at 5 runs,
    1.26, 1.13, 0.92 and 0.46 at 3; Welch's then covers up to 1.00, which is wider than it says.

    Args:
        ran_in_turn: whether both sides ran in the same passes. If they share so many (`MIN_PAIRS`)
            that a disturbance of a whole pass costs more than the lost degrees of freedom, these
            are compared one by one.
    """
    shared = sorted(baseline.keys() & candidate.keys())
    paired = ran_in_turn and len(shared) >= MIN_PAIRS
    if paired:
        baseline, candidate = ({n: side[n] for n in shared} for side in (baseline, candidate))
    if not baseline or not candidate:
        return None
    baseline_logs = [*map(math.log, baseline.values())]
    candidate_logs = [*map(math.log, candidate.values())]
    if paired:
        ratios = [b - a for a, b in zip(baseline_logs, candidate_logs, strict=True)]
        squared_error = _squared_error(ratios)
        freedom = float(len(ratios) - 1)
    else:
        squared_error, freedom = _welch(baseline_logs, candidate_logs)
    return Change(
        baseline=baseline,
        candidate=candidate,
        is_paired=paired,
        log_ratio=fmean(candidate_logs) - fmean(baseline_logs),
        error=None if squared_error is None else math.sqrt(squared_error),
        degrees_of_freedom=freedom,
    )


def mean_per_repetition(of_rows: Sequence[PerRepetition]) -> PerRepetition:
    """The geometric mean over rows in each repetition that all of them have."""
    shared = set.intersection(*map(set, of_rows)) if of_rows else set[int]()
    return {n: geometric_mean([row[n] for row in of_rows]) for n in sorted(shared)}


def _squared_error(values: Sequence[float]) -> float | None:
    """Squared standard error of a mean; None for a single value."""
    return variance(values) / len(values) if len(values) > 1 else None


def _welch(first: Sequence[float], second: Sequence[float]) -> tuple[float | None, float]:
    """Squared standard error of the difference of two independent means, and its degrees of freedom
    (Welch-Satterthwaite): (u + v)² / (u²/p + v²/q), u and v squared errors."""
    u, v = _squared_error(first), _squared_error(second)
    if u is None or v is None or u + v == 0:
        return (None if u is None or v is None else 0.0), len(first) + len(second) - 2
    # Scaled by the sum, so that squares of tiny errors do not underflow.
    parts = (u / (u + v)) ** 2 / (len(first) - 1) + (v / (u + v)) ** 2 / (len(second) - 1)
    return u + v, 1 / parts


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for multiple tests (Holm 1979); None is no test.

    The smallest of m is multiplied by m, the next by m - 1 …, and none falls below a smaller one.
    """
    corrected: list[float | None] = [None] * len(p_values)
    tests = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    largest = 0.0
    for rank, (p, place) in enumerate(tests):
        largest = max(largest, (len(tests) - rank) * p)
        corrected[place] = min(largest, 1.0)
    return corrected
