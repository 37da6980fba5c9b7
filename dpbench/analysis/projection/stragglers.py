"""Stragglers: how much step times without communication differ between ranks and steps.

A two-way analysis of variance of the logarithms of step seconds c[i, t] tells three effects apart,
because they cost a group of n differently:

    rank        a slower device, the same in every step: the slowest of n counts
    time        what all ranks share in a step: no maximum, however many there are
    residual    all else, drawn anew for every rank and step: the maximum of n in every step

Rare events, steps that last far longer on one rank than on the others, are removed first and added
as d (1 - (1 - q)^n). This says nothing about events rarer than one in the measured rank-steps:
seeing a probability q takes some 10 / q of them.

A slowdown is a factor on the trace, which is a median. It is above 1 on average for one replica
too: the loss of n replicas to stragglers is expected_maximum(n) / expected_maximum(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from dpbench.analysis.estimate import Floats
from dpbench.analysis.steps import FEWEST_STEPS, OUTLIER_DEVIATIONS

TAIL_SAMPLES = 10
"""The empirical distribution is used up to its tenth largest value, p = 1 - 10/N; beyond it, and
always within the upper half, quantiles rise as those of a lognormal."""
MOST_QUANTILES = 10_000
RANK_QUANTILES = 101
MOST_CALIBRATION = 4.0
INTEGRATION_POINTS = 20_000
LEAST_EXCESS = 1e-6
"""Smallest share of a step that counts as an event, even if all else is equal to the last digit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerNoise:
    """Coefficients of variation of step seconds without communication, by source."""

    rank_cv: float
    time_cv: float
    residual_cv: float
    residuals: tuple[float, ...]
    """Residuals of the logarithm, rising; all N, or a number of quantiles."""
    rare_probability: float = 0.0
    """Probability of a rare event in a step of one rank."""
    rare_cost: float = 0.0
    """Share of a step that a rare event adds."""
    ranks: int = 0
    rank_steps: int = 0
    """Number of measured steps times ranks, over all repetitions; 0 if nothing was measured."""


def measured_noise(tables: Sequence[Floats]) -> StragglerNoise:
    """The noise in tables of step seconds, each of shape (ranks, steps) and a repetition.

    Variances are those of the random-effects model, estimated from mean squares; one that comes
    out below zero is zero, as usual. Of two ranks the residuals are symmetric by construction.

    Raises:
        ValueError: there is no table, or one has fewer than two ranks or steps, or a time that is
            not above zero.
    """
    if not tables:
        raise ValueError("expected a table at least")
    logs = [_logs(table) for table in tables]
    rare = [_rare(table) for table in logs]
    cells = sum(table.size for table in logs)
    strikes = np.concatenate([cost[cost > 0] for cost in rare])
    quiet = [table[:, ~(cost > 0).any(axis=0)] for table, cost in zip(logs, rare, strict=True)]
    parts = [_variances(table) for table in quiet if table.shape[1] > 1]
    residuals = np.sort(np.concatenate([part.residuals for part in parts]))
    if residuals.size > MOST_QUANTILES:
        residuals = _many_quantiles(residuals, MOST_QUANTILES)
    return StragglerNoise(
        rank_cv=_cv(float(np.mean([part.rank for part in parts]))),
        time_cv=_cv(float(np.mean([part.time for part in parts]))),
        residual_cv=_cv(float(np.mean([part.residual for part in parts]))),
        residuals=tuple(residuals.tolist()),
        rare_probability=len(strikes) / cells,
        rare_cost=float(strikes.mean()) if len(strikes) else 0.0,
        ranks=max(len(table) for table in logs),
        rank_steps=cells,
    )


def calibrated_noise(tables: Sequence[Floats]) -> StragglerNoise:
    """Measured noise, its deviations times one factor, with the E[max] that the tables have.

    Noise that comes in bursts, or hits ranks together, differs from independent draws. So the
    factor makes the slowest of the measured ranks take, in a step, the measured multiple of a
    rank's mean: the mean over tables of E[max] / E[rank].

    Raises:
        ValueError: as `measured_noise`.
    """
    noise = measured_noise(tables)
    ranks = max(len(table) for table in tables)
    target = float(
        np.mean([np.max(t, axis=0).mean() / np.mean(t) for t in map(np.asarray, tables)])
    )

    def excess(factor: float) -> float:
        scaled = _scaled(noise, factor)
        return expected_maximum(scaled, ranks) / expected_maximum(scaled, 1) - target

    if not excess(0.0) < 0 < excess(MOST_CALIBRATION):
        return noise  # rare events alone cost as much, or ranks are equal
    return _scaled(noise, brentq(excess, 0.0, MOST_CALIBRATION))


def _scaled(noise: StragglerNoise, factor: float) -> StragglerNoise:
    """The noise with `factor` times the deviation between ranks, on logarithms."""
    return replace(
        noise,
        rank_cv=_cv((factor * _log_deviation(noise.rank_cv)) ** 2),
        residual_cv=_cv((factor * _log_deviation(noise.residual_cv)) ** 2),
        residuals=tuple(factor * value for value in noise.residuals),
    )


def expected_maximum(noise: StragglerNoise, group_size: int) -> float:
    """The mean slowdown of the slowest of `group_size` replicas in a step.

    It integrates over the quantile function Q: E[max] = ∫ exp Q(u^(1/n)) du over 0 to 1.
    """
    largest = np.exp(_largest(noise, group_size, INTEGRATION_POINTS)).mean()
    common = np.exp(_log_deviation(noise.time_cv) ** 2 / 2)
    return float(largest * common) + rare_delay(noise.rare_probability, noise.rare_cost, group_size)


def rare_delay(probability: float, cost: float, count: int) -> float:
    """Delay d (1 - (1 - q)^n) of a group by events that hit a replica's step with probability q.

    `cost` d is the delay that one adds to its step; two in one step cost as much as one.
    """
    if count < 1:
        raise ValueError(f"the maximum of {count} values: expected 1 or more")
    if not 0 <= probability <= 1:
        raise ValueError(f"a probability of {probability}: expected 0 to 1")
    if probability == 1:
        return cost
    return float(-cost * np.expm1(count * np.log1p(-probability)))


def slowdowns(
    noise: StragglerNoise, group_size: int, steps: int, generator: np.random.Generator
) -> Floats:
    """Slowdowns of `steps` steps, each the maximum over `group_size` replicas; shape (steps,).

    The maximum of n values is drawn as one value, Q(U^(1/n)), for any n. Rank effects are drawn
    anew in every step: that changes the sequence of steps, not their distribution. Draws are
    stratified, so that their mean is `expected_maximum` within a few thousandths.
    """
    # Every component takes all its quantiles once, in random order.
    largest = generator.permutation(_largest(noise, group_size, steps))
    common = generator.permutation(_normal_deviations(steps)) * _log_deviation(noise.time_cv)
    strikes = steps * rare_delay(noise.rare_probability, 1.0, group_size)
    struck = np.clip(strikes - generator.permutation(steps), 0.0, 1.0)
    factors: Floats = np.exp(largest + common) + struck * noise.rare_cost
    return factors


@dataclass(frozen=True, slots=True)
class _Quantiles:
    """The quantile function of a replica's deviation in one step, on a logarithmic scale."""

    values: Floats
    """Quantiles at the midpoints of equal parts of 0 to 1."""
    deviation: float
    tail: float
    """The probability from which quantiles rise as those of a normal distribution."""

    def at(self, probabilities: Floats) -> Floats:
        inside = np.interp(
            np.minimum(probabilities, self.tail), _midpoints(len(self.values)), self.values
        )
        beyond = np.zeros_like(inside)
        far = probabilities > self.tail
        beyond[far] = ndtri(probabilities[far]) - ndtri(self.tail)
        found: Floats = inside + self.deviation * beyond
        return found


@lru_cache(maxsize=64)
def _largest(noise: StragglerNoise, group_size: int, count: int) -> Floats:
    """Deviations of the slowest of `group_size` replicas, at the midpoints of `count` equal parts
    of 0 to 1; shape (count,)."""
    return _quantiles(noise).at(_midpoints(count) ** (1 / group_size))


@lru_cache(maxsize=16)
def _normal_deviations(count: int) -> Floats:
    """Quantiles of the normal distribution at the midpoints of `count` equal parts of 0 to 1."""
    return np.asarray(ndtri(_midpoints(count)))


@lru_cache(maxsize=16)
def _quantiles(noise: StragglerNoise) -> _Quantiles:
    """Quantiles of the sum of a rank's effect, taken as normal, and a residual."""
    rank, residual = _log_deviation(noise.rank_cv), _log_deviation(noise.residual_cv)
    values = np.asarray(noise.residuals)
    if rank > 0:
        both = values[:, None] + rank * _normal_deviations(RANK_QUANTILES)
        values = _many_quantiles(both.ravel(), MOST_QUANTILES)
    measured = noise.rank_steps or MOST_QUANTILES
    return _Quantiles(
        values=values,
        deviation=float(np.hypot(rank, residual)),
        tail=max(0.5, 1 - TAIL_SAMPLES / measured),
    )


def _many_quantiles(values: Floats, count: int) -> Floats:
    """Quantiles at the midpoints of `count` equal parts of 0 to 1, as numpy.quantile gives them.

    It looks for each by itself, which takes four times as long as sorting a million values.
    """
    places = _midpoints(count) * (values.size - 1)
    return np.interp(places, np.arange(values.size), np.sort(values))


@dataclass(frozen=True, slots=True)
class _Variances:
    rank: float
    time: float
    residual: float
    residuals: Floats


def _variances(logs: Floats) -> _Variances:
    """Variances of a table without repetitions in its cells: y[i, t] = m + rank_i + time_t + e[i,
    t]."""
    ranks, steps = logs.shape
    by_rank, by_step = logs.mean(axis=1), logs.mean(axis=0)
    rest = logs - by_rank[:, None] - by_step + logs.mean()
    freedom = (ranks - 1) * (steps - 1)
    residual = float((rest**2).sum() / freedom)
    # Residuals of a fit are smaller than the errors they estimate.
    spread = rest.ravel() * np.sqrt(rest.size / freedom)
    return _Variances(
        rank=max(0.0, float(by_rank.var(ddof=1)) - residual / steps),
        time=max(0.0, float(by_step.var(ddof=1)) - residual / ranks),
        residual=residual,
        residuals=spread,
    )


def _rare(logs: Floats) -> Floats:
    """Delay by rare events in each cell, as a share of the step; 0 where there is none.

    A cell is compared with the median of the other ranks in its step, so that an event on all of
    them does not count. A rare event is an outlier as in `steps`: ten standard deviations, from the
    median deviation.
    """
    centred = logs - np.median(logs, axis=1, keepdims=True)
    others = [np.median(np.delete(centred, rank, axis=0), axis=0) for rank in range(len(logs))]
    excess = centred - np.stack(others)
    limit = OUTLIER_DEVIATIONS * float(np.median(np.abs(excess))) + LEAST_EXCESS
    strikes: Floats = np.where(excess > limit, np.expm1(excess), 0.0)
    quiet = logs.shape[1] - (strikes > 0).any(axis=0).sum()
    # With fewer steps the median deviation rests on two or three of them.
    return strikes if quiet >= FEWEST_STEPS else np.zeros_like(logs)


def _logs(table: Floats) -> Floats:
    values = np.asarray(table, dtype=np.float64)
    if values.ndim != 2 or min(values.shape) < 2:
        raise ValueError(f"a table of shape {values.shape}: expected 2 ranks and 2 steps or more")
    if not (np.isfinite(values).all() and values.min() > 0):
        raise ValueError("expected step seconds above 0")
    return np.log(values)


def _midpoints(count: int) -> Floats:
    return (np.arange(count) + 0.5) / count


def _log_deviation(cv: float) -> float:
    """Standard deviation of the logarithm of a lognormal variable."""
    return float(np.sqrt(np.log1p(cv**2)))


def _cv(log_variance: float) -> float:
    return float(np.sqrt(np.expm1(log_variance)))
