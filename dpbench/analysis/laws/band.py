"""The error of a prediction: from the noise of the points, and from effects that the law leaves
out.

A regression interval is not a prediction band. Beyond the data the larger error is that of the law
itself (the input pipeline, another link); it is one-sided, because reality is slower, and only
hold-outs show its size. Both parts are relative, so they live on the logarithm of the step time;
they are independent, so each side is the root of the sum of their squares.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpbench.analysis.csv_cells import read_table
from dpbench.errors import StoreError

Array = NDArray[np.float64]

CONFIDENCE = 0.90
"""Confidence of all bands: quantiles further out would need more hold-outs than anyone has."""
TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
FEWEST_HOLD_OUTS = 19
"""Fewest hold-outs: with fewer, no order statistic reaches the 5 % or the 95 % quantile: m + 1 >=
20."""
COLUMNS = ("series", "trained_up_to", "group_size", "measured", "predicted")
"""The columns of a CSV file of hold-outs, which a band is calibrated on and anyone may append to;
both throughputs are in the same unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LawError:
    """Distribution of ln(measured ÷ predicted step time), one doubling away from the data."""

    low: float
    """The 5 % quantile; at most 0."""
    high: float
    """The 95 % quantile; at least 0."""
    hold_outs: int
    source: str

    def reach(self, octaves: float) -> tuple[float, float]:
        """(low, high) of the logarithm of the step time, `octaves` doublings away from the data.

        The error grows as the square root of the doublings: an assumption, as only one and two
        were observed.
        """
        return self.low * math.sqrt(octaves), self.high * math.sqrt(octaves)


@dataclass(frozen=True, kw_only=True, slots=True)
class Misspecification:
    """The error of a law away from its points."""

    beyond: LawError
    """Error beyond the largest group size."""
    between: LawError
    """Error between group sizes of the fit."""
    two_sizes: Misspecification | None = None
    """Error of a fit to only two group sizes, which knows less; None means the same."""

    def of_fit(self, sizes: int) -> Misspecification:
        """The error of a fit to `sizes` group sizes."""
        return self.two_sizes if sizes == 2 and self.two_sizes is not None else self


@cache
def published_misspecification() -> Misspecification:
    """The error that published tables show."""
    text = files(__package__).joinpath("misspecification.toml").read_text("utf-8")
    data = tomllib.loads(text)
    two = data["two_sizes"]
    return Misspecification(
        beyond=LawError(**data["beyond"]),
        between=LawError(**data["between"]),
        two_sizes=Misspecification(
            beyond=LawError(**two["beyond"]), between=LawError(**two["between"])
        ),
    )


def calibrated(residuals: Sequence[float], *, source: str) -> LawError:
    """The error according to hold-outs: residuals are ln(measured ÷ predicted) ÷ √octaves.

    Order statistics as in split conformal prediction: among m exchangeable residuals, the next one
    lies between the ⌊0.05 (m+1)⌋-th and the ⌈0.95 (m+1)⌉-th with at least 90 %. Interpolated
    quantiles of few residuals promise more than they hold. Raises ValueError below 19.
    """
    count = len(residuals)
    if count < FEWEST_HOLD_OUTS:
        raise ValueError(
            f"{count} hold-outs: a {CONFIDENCE:.0%} band takes at least {FEWEST_HOLD_OUTS}"
        )
    ordered = sorted(residuals)
    # Rounded first: 0.05 × 20 must be 1, not a little less.
    below = math.floor(round(TAILS[0] * (count + 1), 9))
    above = math.ceil(round(TAILS[1] * (count + 1), 9))
    return LawError(
        low=min(0.0, ordered[below - 1]),
        high=max(0.0, ordered[above - 1]),
        hold_outs=count,
        source=source,
    )


def band(seconds: float, draws: Array, law: tuple[float, float]) -> tuple[float, float]:
    """(low, high) of a predicted step time.

    `draws` (sets of terms, refits) are the predictions of refits on points redrawn from their
    noise; their spread is measured from `seconds`, to either side. `law` is the reach of the law's
    own error, see `LawError`.
    """
    noise = envelope(np.log(draws / seconds))
    below = math.hypot(min(0.0, noise[0]), law[0])
    above = math.hypot(max(0.0, noise[1]), law[1])
    return seconds * math.exp(-below), seconds * math.exp(above)


def envelope(draws: Array) -> tuple[float, float]:
    """(low, high) of `draws` (sets of terms, refits): the widest of the sets' 90 % intervals.

    The sets are alternatives of which one is true, not draws from a distribution: a quantile across
    them would belong to none of them.
    """
    low, high = np.quantile(draws, TAILS, axis=1)
    return float(low.min()), float(high.max())


def misspecification_from(path: Path) -> Misspecification:
    """The error of the law beyond the data, from a file of hold-outs.

    Raises StoreError for a file of another form, or with too few hold-outs.
    """
    names, lines = read_table(path)
    if missing := [name for name in COLUMNS if name not in names]:
        raise StoreError(
            f"{path}, line 1: expected a column {missing[0]!r}, got {names}; "
            "results/published/hold_outs/weak_scaling.csv in dpbench's repository is such a file"
        )
    residuals = []
    for line in lines:
        factor = line.whole("group_size") / line.whole("trained_up_to")
        if factor <= 1:
            raise line.error("group_size", "more than trained_up_to")
        error = math.log(line.positive("predicted") / line.positive("measured"))
        residuals.append(error / math.sqrt(math.log2(factor)))
    if len(residuals) < FEWEST_HOLD_OUTS:
        raise StoreError(
            f"{path}: {len(residuals)} hold-outs; a band of 90 % takes at least "
            f"{FEWEST_HOLD_OUTS}; append your own to those of published tables"
        )
    # Hold-outs come from fits to three sizes or more; other errors stay those of published tables.
    return replace(published_misspecification(), beyond=calibrated(residuals, source=path.name))
