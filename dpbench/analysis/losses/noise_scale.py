"""The gradient noise scale: the batch size from which more samples per step stop paying.

B_simple = tr(Sigma) / |G|², with the true gradient G and the covariance Sigma of the gradients of
single samples: McCandlish, Kaplan, Amodei et al., "An empirical model of large-batch training"
(2018), appendix A. The squared norm of the mean gradient of b samples is |G|² + tr(Sigma) / b on
average, so two batch sizes determine both. A rank's shard and the global batch are such a pair.

With that scale phi, training to a given loss takes S = S_min (1 + phi / B) steps of B samples
(equation 2.11 there). So a sample of a batch of B is worth (phi + B0) / (phi + B) samples of a
batch of B0, and goodput = throughput times that: Qiao et al., "Pollux" (OSDI 2021). phi itself is
the critical batch: twice the fewest steps, twice the fewest samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.estimate import Estimate, product, t_quantile
from dpbench.analysis.numerics import Floats
from dpbench.records.trial import GradientNorms, TrialRecord

WIDEST = 3.0
"""Largest ratio of the ends of an interval that is shown; beyond it, only the lower end is. The
ratio then appears only because |G|² came out large by luck, and its value is too small by up to a
factor of 3."""
FEWEST_BATCHES = 5
"""Fewest global batches for a useful interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseScale:
    """B_simple in samples, or why there is none."""

    samples: Estimate | None
    reason: str | None = None
    at_least: float | None = None
    """The lower bound in samples, if the measured batches give no useful upper one."""


def noise_scale(records: Sequence[TrialRecord]) -> NoiseScale | None:
    """The noise scale over the repetitions of a configuration; None if no gradient norms were
    measured.

    Repetitions see the same global batches, so each batch counts once, at the mean of its norms,
    and the interval is that of the batches.
    """
    measured = [norms for record in records if (norms := _norms(record)) is not None]
    if not measured:
        return None
    traces, squares = np.mean([covariance_and_square(norms) for norms in measured], axis=0)
    if (reason := _reason_for_none(traces, squares)) is not None:
        return NoiseScale(samples=None, reason=reason)
    low, high = ratio_of_means(traces, squares)
    if high is None or high > WIDEST * low:
        reason = f"{len(traces)} global batches leave the gradient in its noise"
        return NoiseScale(
            samples=None,
            reason=f"{reason}: at least {low:,.3g} samples; raise --noise-scale",
            at_least=low,
        )
    estimate = Estimate(
        value=float(traces.mean() / squares.mean()),
        low=max(low, 0.0),  # a variance is never negative, so the interval ends there
        high=high,
        unit=records[0].item,
        sample_size=len(traces),
        basis="step batches",
    )
    return NoiseScale(samples=estimate)


def _reason_for_none(traces: Floats, squares: Floats) -> str | None:
    if (count := len(traces)) < FEWEST_BATCHES:
        return f"--noise-scale got {count} global batches, expected at least {FEWEST_BATCHES}"
    if not np.isfinite([traces, squares]).all():
        return "gradients are not finite"
    if traces.mean() <= 0:
        return "the gradients of the ranks do not differ by more than rounding"
    return None


def covariance_and_square(ranks: Sequence[GradientNorms]) -> Floats:
    """Unbiased estimates of tr(Sigma) and |G|² from each global batch, of shape (2, batches).

    With b = samples per rank and B of all ranks: tr(Sigma) from (mean|g_i|² - |g|²) ÷ (1/b - 1/B),
    |G|² from (B|g|² - b mean|g_i|²) ÷ (B - b). Means over ranks are weighted by samples; then b
    is the plain mean of uneven shards.
    """
    large = float(ranks[0].global_samples)
    small = large / len(ranks)
    weights = np.array([norms.local_samples for norms in ranks]) / large
    local = weights @ np.array([norms.local_squared for norms in ranks], dtype=np.float64)
    whole = np.array(ranks[0].global_squared, dtype=np.float64)
    trace = (local - whole) / (1 / small - 1 / large)
    square = (large * whole - small * local) / (large - small)
    return np.stack([trace, square])


def ratio_of_means(numerators: Floats, denominators: Floats) -> tuple[float, float | None]:
    """Fieller's interval of mean(numerators) ÷ mean(denominators), measured in pairs.

    The upper end is None if the interval of the denominator's mean reaches zero: the ratio then has
    no upper bound. Both means are positive by their nature, and so is the ratio. Fieller, "Some
    problems in interval estimation" (1954).
    """
    count = len(numerators)
    x, y = float(numerators.mean()), float(denominators.mean())
    covariance = np.cov(numerators, denominators) / count * t_quantile(count - 1) ** 2
    a, b, c = y * y - covariance[1, 1], x * y - covariance[0, 1], x * x - covariance[0, 0]
    reach = math.sqrt(max(b * b - a * c, 0.0))  # negative only through rounding
    if y <= 0 or a <= 0:
        # Outside the roots of a parabola that opens down: the positive root bounds from below.
        return (max(0.0, float((b - reach) / a)) if a < 0 < c else 0.0), None
    return float((b - reach) / a), float((b + reach) / a)


def _norms(record: TrialRecord) -> list[GradientNorms] | None:
    """Norms of every rank, or None: if one is missing, the mean over ranks is unknown."""
    norms = [rank.gradient_norms for rank in record.ranks if rank.gradient_norms is not None]
    return norms if len(norms) == len(record.ranks) > 1 else None


def statistical_efficiency(
    noise_scale: Estimate, batch_size: float, *, base_batch_size: float
) -> Estimate:
    """Progress per sample at a batch size, relative to a sample at the base batch size.

    Batch sizes are those of one optimizer step, all replicas and micro-steps together.
    """
    # Monotonic in phi: rising if the batch is larger than the base, else falling.
    return noise_scale.mapped(lambda phi: (phi + base_batch_size) / (phi + batch_size), unit="×")


def goodput(throughput: Estimate, efficiency: Estimate) -> Estimate:
    """Throughput times statistical efficiency, in items of the base batch size per second."""
    return product(throughput, efficiency, unit=throughput.unit)
