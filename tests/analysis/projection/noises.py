"""Noise that nobody measured."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from dpbench.analysis.projection.stragglers import StragglerNoise

QUANTILES = 10_000


def assumed_noise(residual_cv: float) -> StragglerNoise:
    """Lognormal, different for every rank and step."""
    normal = ndtri((np.arange(QUANTILES) + 0.5) / QUANTILES) * np.sqrt(np.log1p(residual_cv**2))
    return StragglerNoise(
        rank_cv=0.0, time_cv=0.0, residual_cv=residual_cv, residuals=tuple(normal.tolist())
    )
