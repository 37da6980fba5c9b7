"""A fitted law: its costs, and what it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.laws.band import CONFIDENCE, Misspecification, band, envelope
from dpbench.analysis.laws.basis import Term
from dpbench.analysis.laws.prediction import Prediction, Reach
from dpbench.analysis.laws.series import Series

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingFit:
    """Step time = Σ coefficient × term, for a series."""

    series: Series
    terms: tuple[Term, ...]
    coefficients: Array = field(compare=False)
    """Seconds, each >= 0; in the order of `terms`."""
    draws: Array = field(compare=False)
    """(sets of terms, refits, terms): the coefficients of refits on redrawn points, for every set
    of terms that fits equally; one refit where nothing but the law itself is uncertain."""
    misspecification: Misspecification
    ambiguous: tuple[str, ...] = ()
    """Terms that the measured group sizes cannot tell apart; bands span all of them."""

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
            (p.group_size, self.seconds(p.group_size) / p.step_seconds.value - 1)
            for p in self.series.points
        )
        return max(misses, key=lambda miss: abs(miss[1]))

    def seconds(self, group_size: float) -> float:
        """The step time by the law alone, wherever it is asked for."""
        return float(self.coefficients @ at(self.terms, [group_size])[0])

    def cost(self, term: Term) -> Estimate:
        """The coefficient of a term; without an interval where the noise is not known."""
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
        """The measurement where there is one, else the law with its band, or a refusal."""
        kind, reason = self.reach.kind(group_size), self.reach.refusal(group_size)
        if reason is not None:
            return Prediction(group_size=group_size, kind=kind, reason=reason)
        if (point := self.series.point(group_size)) is not None:
            return Prediction(
                group_size=group_size,
                kind=kind,
                step_seconds=point.step_seconds.estimate("s"),
                throughput=self.series.throughput(point).estimate(self.series.unit),
            )
        seconds, (low, high) = self.seconds(group_size), self._band(group_size)
        items = self.series.items(group_size)
        return Prediction(
            group_size=group_size,
            kind=kind,
            step_seconds=self._estimate(seconds, low, high, "s"),
            throughput=self._estimate(items / seconds, items / high, items / low, self.series.unit),
        )

    def _band(self, group_size: int) -> tuple[float, float]:
        inside = group_size < self.series.group_sizes[-1]
        error = self.misspecification.between if inside else self.misspecification.beyond
        drawn = self.draws @ at(self.terms, [group_size])[0]
        law = error.reach(self.reach.octaves(group_size))
        return band(self.seconds(group_size), drawn, law)

    def _estimate(self, value: float, low: float, high: float, unit: str) -> Estimate:
        return Estimate(
            value=value,
            low=low,
            high=high,
            unit=unit,
            sample_size=len(self.series.points),
            basis="model",
            confidence=CONFIDENCE,
        )


def at(chosen: Sequence[Term], group_sizes: Sequence[float]) -> Array:
    """(group sizes, terms): what each term is at each group size."""
    sizes = np.asarray(group_sizes, dtype=float)
    return np.array([term.value(sizes) for term in chosen]).reshape(len(chosen), len(sizes)).T
