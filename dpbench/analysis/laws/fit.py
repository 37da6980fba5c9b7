"""The step time of a series as a sum of costs, fitted to its points, and what it predicts.

The fit is a non-negative least squares on relative residuals, and so deterministic:

    minimise Σ ((T̂(n) - T(n)) / (T(n) · σ))²  with coefficients >= 0

Relative, because the noise of a time is; non-negative, because every term is a cost (with free
signs, 3 parameters through 3 points predict 29 % wrong at twice the data). A parametric bootstrap
shows how the coefficients scatter: the points are redrawn from their noise and fitted again.

In strong scaling a replica's computation shrinks, and the rest does not. So T(n) at a fixed global
batch B is not fitted directly: the step of one replica, t1(b) = launch + b × work, is known from
group size 1 at several batches; then T(n) = t1(B/n) + overhead(n), and only the overhead is fitted.

Two group sizes show the cost of the second replica, but not that of further ones: bandwidth,
latency and a fixed overhead (hooks, copies) all fit both points. The prediction then keeps the last
efficiency, which agrees best with withheld published series, and the band spans the predictions of
the other terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from scipy.optimize import nnls

from dpbench.analysis.estimate import Estimate, Floats, LogMean
from dpbench.analysis.laws.band import (
    CONFIDENCE,
    Misspecification,
    Reach,
    band,
    banded,
    envelope,
    lack_of_fit,
    published_misspecification,
)
from dpbench.analysis.laws.basis import DEFAULT, Term, default_basis, saturated, terms
from dpbench.analysis.laws.series import Series, require_points
from dpbench.analysis.provenance import FARTHEST, PredictedRow
from dpbench.errors import UsageError

Columns = tuple[int, ...]
"""Indices of terms."""

SAME_RESIDUAL = 1e-9
"""Relative difference of residuals below which sets of terms cannot be distinguished."""
SEED = 20_250_101
"""Seed of the bootstrap, so that equal data give equal bands."""
LARGEST_LOG = 50.0
"""Largest logarithm that is kept. A t distribution with one degree of freedom draws numbers whose
exponential overflows; they lie far outside the quantiles of a band."""
LAW_ERROR = 1e-3
"""Smallest relative error of a law: no law is better, so runs that happen to be equal do not
outweigh all others."""
REFITS = 1000

LAUNCH_TERM = Term(
    name="launch",
    formula="1",
    mechanism="of one replica's step, what does not depend on its batch",
    value=np.ones_like,
)
SHARE_TERM = Term(
    name="share",
    formula="1/n",
    mechanism="of one replica's step, what its share of the batch takes",
    value=lambda n: 1 / n,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction(PredictedRow):
    """The predicted speed at one group size."""

    step_seconds: Estimate | None = None
    """Seconds of one optimizer step; the basis is "model" unless it was measured."""
    throughput: Estimate | None = None
    """Items per second of all replicas together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingFit:
    """Fit for a series: step time = Σ coefficient × term."""

    series: Series
    terms: tuple[Term, ...]
    coefficients: Floats = field(compare=False)
    """Coefficients in seconds, each >= 0; in the order of `terms`."""
    draws: Floats = field(compare=False)
    """Coefficients (sets of terms, refits, terms) of refits on redrawn points, for every set of
    terms that fits equally; one refit if only the law itself is uncertain."""
    misspecification: Misspecification
    ambiguous: tuple[str, ...] = ()
    """Terms that the measured group sizes cannot distinguish; bands span all of them."""

    @property
    def reach(self) -> Reach:
        series = self.series
        return Reach(
            measured=series.group_sizes,
            replicas_per_node=series.replicas_per_node,
            most_replicas=series.batch_size if series.scaling == "strong" else None,
        )

    @property
    def largest_miss(self) -> tuple[int, float]:
        """(group size, fitted ÷ measured step time - 1) of the point that the law misses most."""
        misses = (
            (p.group_size, self.law(p.group_size) / p.step_seconds.value - 1)
            for p in self.series.points
        )
        return max(misses, key=lambda miss: abs(miss[1]))

    def law(self, group_size: float) -> float:
        """The step time in seconds from the terms alone, at any group size."""
        return float(self.coefficients @ term_values(self.terms, [group_size])[0])

    def seconds(self, group_size: float) -> float:
        """The step time of a prediction: the law's, in weak scaling never below the last measured.

        Reality is slower more often than faster. A law that ends a little below the last point,
        within its noise, would promise the opposite; one that ends far below is refused.
        """
        law, last = self.law(group_size), self.series.points[-1]
        if self.series.scaling == "strong" or group_size <= last.group_size:
            return law
        return max(law, last.step_seconds.value)

    def refusal(self, group_size: int) -> str | None:
        """Why there is no prediction at a group size; None if there is one."""
        if (reason := self.reach.refusal(group_size)) is not None:
            return reason
        if group_size in self.reach.measured:
            return None
        return lack_of_fit(self.series, self.law, group_size)

    def cost(self, term: Term) -> Estimate:
        """The coefficient of a term; without an interval if the noise is not known."""
        column = self.terms.index(term)
        value, spread = float(self.coefficients[column]), self.draws[..., column]
        plain = bool(np.ptp(spread) <= 1e-9 * value)
        low, high = (None, None) if plain else envelope(spread)
        return Estimate(
            value=value,
            low=None if low is None else min(low, value),
            high=None if high is None else max(high, value),
            unit="s",
            sample_size=len(self.series.points),
            basis="single value" if plain else "model",
            confidence=CONFIDENCE,
        )

    def predict(self, group_size: int) -> Prediction:
        """The measurement if there is one, else the law with its band, or a refusal."""
        if (reason := self.refusal(group_size)) is not None:
            return Prediction(group_size=group_size, kind="refused", reason=reason)
        kind = self.reach.kind(group_size)
        if (point := self.series.point(group_size)) is not None:
            return Prediction(
                group_size=group_size,
                kind=kind,
                step_seconds=point.step_seconds.estimate("s"),
                throughput=self.series.throughput(point).estimate(self.series.unit),
            )
        step = banded(
            self.seconds(group_size),
            self._band(group_size),
            "s",
            sample_size=len(self.series.points),
        )
        items = self.series.items(group_size)
        return Prediction(
            group_size=group_size,
            kind=kind,
            step_seconds=step,
            throughput=step.mapped(lambda seconds: items / seconds, unit=self.series.unit),
        )

    def _band(self, group_size: int) -> tuple[float, float]:
        inside = group_size < self.series.group_sizes[-1]
        error = self.misspecification.between if inside else self.misspecification.beyond
        drawn = self.draws @ term_values(self.terms, [group_size])[0]
        law = error.reach(self.reach.octaves(group_size))
        return band(self.seconds(group_size), drawn, law)


def term_values(chosen: Sequence[Term], group_sizes: Sequence[float]) -> Floats:
    """Values (group sizes, terms) of each term at each group size."""
    sizes = np.asarray(group_sizes, dtype=float)
    return np.array([term.value(sizes) for term in chosen]).reshape(len(chosen), len(sizes)).T


def fit(
    series: Series,
    *,
    basis: Sequence[str] | None = None,
    misspecification: Misspecification | None = None,
    refits: int = REFITS,
) -> ScalingFit:
    """Fit a law; with `basis` None the terms follow from the implementation's mechanism.

    `misspecification` is the error of the law beyond the data; None means that of published tables.
    Raises UsageError for fewer than two points, for copies without communication unless `basis`
    names their terms, and in strong scaling for a step of one replica that is not known at two
    batch sizes.
    """
    require_points(series)
    names = basis or default_basis(series.implementation)
    chosen = terms(names, series.group_sizes, series.replicas_per_node)
    kept = saturated(series.group_sizes[-1])
    if basis is None and names == DEFAULT and len(series.points) == 2:
        chosen = (*chosen, kept)
    steps = [point.step_seconds for point in series.points]
    alone = _work_of_one(series)
    seconds = redrawn([*steps, *alone.steps], refits)
    seconds, alone_seconds = seconds[:, : len(steps)], seconds[:, len(steps) :]
    if alone.terms:
        # The work of one replica gives the computing time; only the rest belongs to the group.
        chosen = tuple(term for term in chosen if term.name != "const")
    work = alone.coefficients(alone_seconds)
    targets = seconds - work @ term_values(alone.terms, series.group_sizes).T
    found = _refit(
        term_values(chosen, series.group_sizes),
        targets,
        seconds,
        _relative_errors(steps),
        far=term_values(chosen, [FARTHEST * series.group_sizes[-1]])[0],
        preferred=chosen.index(kept) if kept in chosen else None,
    )
    return ScalingFit(
        series=series,
        terms=(*alone.terms, *chosen),
        coefficients=np.concatenate([work[0], found.coefficients]),
        draws=np.concatenate([_drawn_along(work, found.draws), found.draws], axis=-1),
        misspecification=(misspecification or published_misspecification()).of_fit(len(steps)),
        ambiguous=tuple(chosen[column].name for column in found.ambiguous),
    )


def _drawn_along(work: Floats, draws: Floats) -> Floats:
    """The work of one replica as drawn for each _refit: (sets, refits, its terms)."""
    sets, refits, _ = draws.shape
    if len(work) == 1:
        return np.broadcast_to(work, (sets, refits, work.shape[1]))
    return work[1 : 1 + sets * refits].reshape(sets, refits, -1)


@dataclass(frozen=True, kw_only=True, slots=True)
class _WorkOfOne:
    """t1(B/n) as terms of the group size; none in weak scaling, where it is a constant."""

    terms: tuple[Term, ...] = ()
    steps: tuple[LogMean, ...] = ()
    """Step times of one replica, at `shares` of the batch."""
    shares: tuple[float, ...] = ()

    def coefficients(self, seconds: Floats) -> Floats:
        """Coefficients (redrawings, terms) in seconds, from the step times (redrawings, steps)."""
        shares = np.array(self.shares)
        matrix = np.stack([np.ones_like(shares), shares], axis=1)
        weights = 1 / (seconds * _relative_errors(self.steps))
        found = [solve(matrix, row, w, (0, 1))[0] for row, w in zip(seconds, weights, strict=True)]
        return np.stack(found)[:, : len(self.terms)]


def _work_of_one(series: Series) -> _WorkOfOne:
    """The work of one replica; raises UsageError if its step is not known at two batch sizes."""
    if series.scaling == "weak":
        return _WorkOfOne()
    batches = [lone.batch_size for lone in series.lone_steps]
    if len(set(batches)) < 2 or series.batch_size is None:
        got = ", ".join(map(str, batches)) or "none"
        raise UsageError(
            f"{series.label}: strong scaling needs the step of one replica at two batch sizes "
            f"(group size 1), got {got}; its time for a smaller share of the batch is not known"
        )
    return _WorkOfOne(
        terms=(LAUNCH_TERM, SHARE_TERM),
        steps=tuple(lone.step_seconds for lone in series.lone_steps),
        shares=tuple(batch / series.batch_size for batch in batches),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Refits:
    """The terms of a law, fitted many times."""

    coefficients: Floats
    """Coefficients (terms) fitted to the points as they are."""
    draws: Floats
    """Coefficients (sets of terms, refits, terms): more than one set if they fit equally well."""
    ambiguous: tuple[int, ...]
    """Columns of terms that the points cannot distinguish."""


def _refit(
    matrix: Floats,
    targets: Floats,
    seconds: Floats,
    relative_errors: Floats,
    *,
    far: Floats,
    preferred: int | None = None,
) -> _Refits:
    """Fit the points and every redrawing of them.

    `matrix` (points, terms) has the terms; `targets` (1 + refits, points) their sums, the original
    points first; `seconds`, of the same shape, the step times that make residuals relative. If
    several sets of terms fit equally, each takes its part of the refits, and the coefficients are
    those of the set with the `preferred` column, else those with the longest step at `far` (terms):
    reality is slower more often than faster.
    """
    weights = 1 / (seconds * relative_errors)
    sets = _distinguishable(matrix, targets[0], weights[0])
    solutions = np.stack([solve(matrix, targets[0], weights[0], s)[0] for s in sets])
    each = (len(targets) - 1) // len(sets)
    draws = [
        solve(matrix, targets[row], weights[row], columns)[0]
        for place, columns in enumerate(sets)
        for row in range(1 + place * each, 1 + (place + 1) * each)
    ]
    used = solutions > 0
    best = next((k for k, columns in enumerate(sets) if preferred in columns), None)
    return _Refits(
        coefficients=solutions[np.argmax(solutions @ far) if best is None else best],
        draws=np.stack(draws).reshape(len(sets), each, -1) if draws else solutions[:, None],
        ambiguous=tuple(np.flatnonzero(used.any(axis=0) & ~used.all(axis=0))),
    )


def solve(
    matrix: Floats, targets: Floats, weights: Floats, columns: Columns
) -> tuple[Floats, float]:
    """(coefficients, residual) with all but the given columns at zero.

    `matrix` (points, terms) has the terms at each point, `targets` their sums, `weights` the weight
    of each residual: 1 / (T σ).
    """
    coefficients = np.zeros(matrix.shape[1])
    if columns:
        scaled = matrix[:, columns] * weights[:, None]
        coefficients[list(columns)] = nnls(scaled, targets * weights)[0]
    return coefficients, float(np.linalg.norm((matrix @ coefficients - targets) * weights))


def _distinguishable(matrix: Floats, targets: Floats, weights: Floats) -> tuple[Columns, ...]:
    """The largest sets of terms that the points can distinguish, with the best fit.

    More than one where the points cannot say which terms are there: two group sizes do not tell
    bandwidth (ring) from latency (log), and both then go through the points.
    """
    scaled = matrix * weights[:, None]
    rank = int(np.linalg.matrix_rank(scaled))
    independent = [
        columns
        for columns in combinations(range(matrix.shape[1]), rank)
        if np.linalg.matrix_rank(scaled[:, columns]) == rank
    ]
    residuals = [solve(matrix, targets, weights, columns)[1] for columns in independent]
    limit = min(residuals, default=0.0) + SAME_RESIDUAL * float(np.linalg.norm(targets * weights))
    return tuple(c for c, r in zip(independent, residuals, strict=True) if r <= limit)


def redrawn(values: Sequence[LogMean], refits: int) -> Floats:
    """Values (1 + refits, values): the original ones, then redrawn from their t distributions on
    the logarithm.

    A value of unknown spread stays as it is; if none is known, there are no refits.
    """
    if all(value.squared_error is None for value in values):
        refits = 0
    generator = np.random.default_rng(SEED)
    draws = np.tile([value.value for value in values], (1 + refits, 1))
    for column, value in enumerate(values):
        if value.squared_error is not None:
            errors = generator.standard_t(value.degrees_of_freedom, refits)
            logs = np.sqrt(value.squared_error) * errors
            draws[1:, column] *= np.exp(np.clip(logs, -LARGEST_LOG, LARGEST_LOG))
    return draws


def _relative_errors(values: Sequence[LogMean]) -> Floats:
    """Relative errors that weight the values: their standard errors if all are known, else equal
    ones."""
    squared = [value.squared_error for value in values]
    known = [error for error in squared if error is not None]
    if len(known) < len(squared):
        return np.ones(len(squared))
    return np.hypot(np.sqrt(known), LAW_ERROR)
