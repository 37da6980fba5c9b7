"""Strong scaling: what a replica has to compute gets smaller, and the rest does not.

T(n) at a fixed global batch B is not fitted as it is. The step of one replica, t1(b) = launch +
b × work, is known from group size 1 at several batches; then T(n) = t1(B/n) + overhead(n), and only
the overhead is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpbench.analysis.estimate import LogMean
from dpbench.analysis.laws.basis import Term
from dpbench.analysis.laws.least_squares import solve
from dpbench.analysis.laws.noise import relative_errors
from dpbench.analysis.laws.series import Series
from dpbench.errors import UsageError

Array = NDArray[np.float64]

LAUNCH = Term(
    name="launch",
    formula="1",
    mechanism="of one replica's step, what does not depend on its batch",
    value=np.ones_like,
)
SHARE = Term(
    name="share",
    formula="1/n",
    mechanism="of one replica's step, what its share of the batch takes",
    value=lambda n: 1 / n,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkOfOne:
    """t1(B/n) as terms of the group size; none in weak scaling, where it is a constant."""

    terms: tuple[Term, ...] = ()
    steps: tuple[LogMean, ...] = ()
    """Of one replica, at `shares` of the batch."""
    shares: tuple[float, ...] = ()

    def coefficients(self, seconds: Array) -> Array:
        """(redrawings, terms), seconds, from the step times (redrawings, steps)."""
        shares = np.array(self.shares)
        matrix = np.stack([np.ones_like(shares), shares], axis=1)
        weights = 1 / (seconds * relative_errors(self.steps))
        found = [solve(matrix, row, w, (0, 1))[0] for row, w in zip(seconds, weights, strict=True)]
        return np.stack(found)[:, : len(self.terms)]


def work_of_one(series: Series) -> WorkOfOne:
    """Raises UsageError if the step of one replica is not known at two batch sizes."""
    if series.scaling == "weak":
        return WorkOfOne()
    batches = [lone.batch_size for lone in series.lone_steps]
    if len(set(batches)) < 2 or series.batch_size is None:
        got = ", ".join(map(str, batches)) or "none"
        raise UsageError(
            f"{series.label}: strong scaling needs the step of one replica at two batch sizes "
            f"(group size 1), got {got}; its time for a smaller share of the batch is not known"
        )
    return WorkOfOne(
        terms=(LAUNCH, SHARE),
        steps=tuple(lone.step_seconds for lone in series.lone_steps),
        shares=tuple(batch / series.batch_size for batch in batches),
    )
