"""Fits the law of a series, with the mechanism of its implementation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpbench.analysis.laws.band import Misspecification, published_misspecification
from dpbench.analysis.laws.basis import default_basis, terms
from dpbench.analysis.laws.noise import redrawn, relative_errors
from dpbench.analysis.laws.refits import REFITS, refit
from dpbench.analysis.laws.scaling_fit import ScalingFit, at
from dpbench.analysis.laws.series import Series, require_points
from dpbench.analysis.laws.strong import work_of_one
from dpbench.analysis.provenance import FARTHEST

Array = NDArray[np.float64]


def fit(
    series: Series,
    *,
    basis: Sequence[str] | None = None,
    misspecification: Misspecification | None = None,
    refits: int = REFITS,
) -> ScalingFit:
    """Fits a law; `basis` None takes the terms of the implementation's mechanism.

    `misspecification` is the error of the law beyond the data; None that of published tables.
    Raises UsageError for fewer than two points, for copies without communication unless `basis`
    names their terms, and in strong scaling for a step of one replica that is not known at two
    batch sizes.
    """
    require_points(series)
    names = basis or default_basis(series.implementation)
    chosen = terms(names, series.group_sizes, series.replicas_per_node)
    steps = [point.step_seconds for point in series.points]
    alone = work_of_one(series)
    seconds = redrawn([*steps, *alone.steps], refits)
    seconds, alone_seconds = seconds[:, : len(steps)], seconds[:, len(steps) :]
    if alone.terms:
        # The work of one replica says what computing takes; only the rest is the group's.
        chosen = tuple(term for term in chosen if term.name != "const")
    work = alone.coefficients(alone_seconds)
    targets = seconds - work @ at(alone.terms, series.group_sizes).T
    found = refit(
        at(chosen, series.group_sizes),
        targets,
        seconds,
        relative_errors(steps),
        far=at(chosen, [FARTHEST * series.group_sizes[-1]])[0],
    )
    return ScalingFit(
        series=series,
        terms=(*alone.terms, *chosen),
        coefficients=np.concatenate([work[0], found.coefficients]),
        draws=np.concatenate([_drawn_along(work, found.draws), found.draws], axis=-1),
        misspecification=misspecification or published_misspecification(),
        ambiguous=tuple(chosen[column].name for column in found.ambiguous),
    )


def _drawn_along(work: Array, draws: Array) -> Array:
    """The work of one replica as drawn for each refit: (sets, refits, its terms)."""
    sets, refits, _ = draws.shape
    if len(work) == 1:
        return np.broadcast_to(work, (sets, refits, work.shape[1]))
    return work[1 : 1 + sets * refits].reshape(sets, refits, -1)
