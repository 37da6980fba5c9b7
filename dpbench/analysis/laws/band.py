"""Trust in a law: the error of its predictions, and the group sizes where it has none."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from dpbench import units
from dpbench.analysis.csv_cells import read_table
from dpbench.analysis.estimate import Estimate, Floats
from dpbench.analysis.laws.series import Point, Series
from dpbench.analysis.provenance import FARTHEST, Provenance
from dpbench.errors import StoreError

CONFIDENCE = 0.90
"""Confidence of all bands: quantiles further out would need more hold-outs than anyone has."""
TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
FEWEST_HOLD_OUTS = 19
"""Fewest hold-outs: with fewer, no order statistic reaches the 5 % or the 95 % quantile: m + 1 >=
20."""
HOLD_OUT_COLUMNS = ("series", "trained_up_to", "group_size", "measured", "predicted")
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


def band(seconds: float, draws: Floats, law: tuple[float, float]) -> tuple[float, float]:
    """(low, high) of a predicted step time.

    `draws` (sets of terms, refits) are the predictions of refits on points redrawn from their
    noise; their spread is measured from `seconds`, to either side. `law` is the reach of the law's
    own error, see `LawError`.
    """
    noise = envelope(np.log(draws / seconds))
    below = math.hypot(min(0.0, noise[0]), law[0])
    above = math.hypot(max(0.0, noise[1]), law[1])
    return seconds * math.exp(-below), seconds * math.exp(above)


def banded(value: float, ends: tuple[float, float], unit: str, *, sample_size: int) -> Estimate:
    """A number of a law or a simulation, with the ends of its 90 % band."""
    return Estimate(
        value=value,
        low=ends[0],
        high=ends[1],
        unit=unit,
        sample_size=sample_size,
        basis="model",
        confidence=CONFIDENCE,
    )


def envelope(draws: Floats) -> tuple[float, float]:
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
    if missing := [name for name in HOLD_OUT_COLUMNS if name not in names]:
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


LARGE_MISFIT = 0.05
"""Share of a measured step: a law that misses one by more, and by more than the step's noise, has
not seen all effects."""
SHORTFALL = 0.02
"""Share of the last measured step: a law that ends lower by less may owe it to the rounding of a
published number; or to noise, if that is known and larger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """The basis of a fit, and so where it may predict."""

    measured: tuple[int, ...]
    """Measured group sizes, ascending."""
    replicas_per_node: int | None = None
    """Replicas per node; None if not known, so that no prediction is refused for it."""
    most_replicas: int | None = None
    """Most replicas: a shared batch has at least one sample for each; None if it is not shared."""

    def kind(self, group_size: int) -> Provenance:
        if self.refusal(group_size):
            return "refused"
        if group_size in self.measured:
            return "measured"
        return "interpolated" if group_size < self.measured[-1] else "extrapolated"

    def refusal(self, group_size: int) -> str | None:
        """Why there is no prediction; None if there is one."""
        smallest, largest = self.measured[0], self.measured[-1]
        if group_size < smallest:
            return f"{group_size} is below the smallest measured group size, {smallest}"
        if group_size > FARTHEST * largest:
            return (
                f"{group_size} is {group_size / largest:.3g} × the largest measured group size, "
                f"{largest}; a fitted curve is trusted up to {FARTHEST} × "
                "(dpbench project simulates the step on a given network)"
            )
        if self.most_replicas is not None and group_size > self.most_replicas:
            return (
                f"{group_size} replicas cannot share a batch of {self.most_replicas}; "
                "each needs a sample"
            )
        node = self.replicas_per_node
        if node is not None and group_size > node >= largest:
            return (
                f"{group_size} replicas take more than one node of {node}, and no measurement "
                "crosses nodes; what their link costs is unknown "
                "(dpbench project takes a --topology)"
            )
        return None

    def octaves(self, group_size: int) -> float:
        """Doublings between a group size and the nearest measured one."""
        return min(abs(math.log2(group_size / n)) for n in self.measured)


def sizes_beyond(measured: Sequence[int]) -> tuple[int, ...]:
    """Group sizes predicted by default: twice and four times the largest."""
    return 2 * max(measured), FARTHEST * max(measured)


def lack_of_fit(series: Series, law: Callable[[float], float], group_size: int) -> str | None:
    """Why a law fitted to a series says nothing about a group size that was not measured; None if
    it does.

    Beyond the points all of them count; between points, only the two neighbours.

    Args:
        law: the step time in seconds at a group size.
    """
    sizes, last = series.group_sizes, series.points[-1]
    beyond = group_size > sizes[-1]
    neighbours = (
        max((n for n in sizes if n <= group_size), default=sizes[0]),
        min((n for n in sizes if n >= group_size), default=sizes[-1]),
    )
    concerned = [p for p in series.points if beyond or p.group_size in neighbours]
    misses = [
        (miss, point)
        for point in concerned
        if (miss := abs(_log_ratio(law(point.group_size), point.step_seconds.value)))
        > max(math.log1p(LARGE_MISFIT), point_noise(point))
    ]
    if misses:
        _, worst = max(misses, key=lambda pair: pair[0])
        relative = law(worst.group_size) / worst.step_seconds.value - 1
        return (
            f"the law misses the measured step at {worst.group_size} by "
            f"{units.fixed_percent(relative, signed=True)}: something changes along the group "
            f"sizes that no smooth cost explains; measure {group_size}"
        )
    if beyond and series.scaling == "weak":
        predicted, measured = law(group_size), last.step_seconds.value
        if -_log_ratio(predicted, measured) > max(SHORTFALL, point_noise(last)):
            return (
                f"the law gives a step at {group_size} that is "
                f"{units.fixed_percent(1 - predicted / measured)} shorter than the one measured at "
                f"{last.group_size}: the last sizes cost more than it knows; measure {group_size}"
            )
    return None


def _log_ratio(law: float, measured: float) -> float:
    """Log of law ÷ measured. A law without a constant part is 0 at one replica."""
    return math.log(law / measured) if law > 0 else -math.inf


def point_noise(point: Point) -> float:
    """Half the 95 % interval of a measured step, on its logarithm; 0 if not known."""
    interval = point.step_seconds.estimate("s").interval
    return 0.0 if interval is None else math.log(interval[1] / point.step_seconds.value)
