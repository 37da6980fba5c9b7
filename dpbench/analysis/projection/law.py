"""A law through measured step times: what a few group sizes say about others.

The step is a sum of terms, none below zero: a constant (computing), (n-1)/n (bandwidth of an
all-reduce), log2 n (latency of trees, waiting for the slowest replica) and, from four group sizes
on, n-1 (what is done for one replica after the other). Two group sizes cannot tell terms apart:
there the rise of the last doubling goes on, by half of it in the next one, a quarter in the one
after that.

The band is conformal: the errors that the same predictions make on published tables, growing with
the square root of the doublings beyond the data. The noise of the measured points, and what
other continuations of the same points would give (no further rise; without and with the term n-1),
add to it as independent errors do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dpbench.analysis.projection.row import Kind, ProjectedRow, reach
from dpbench.analysis.projection.series import Series, noise_of, published_series
from dpbench.errors import UsageError
from dpbench.shipped import RESULTS

FARTHEST = 4
"""Largest multiple of the largest measured group size that is predicted."""
FEWEST_FOR_LINEAR = 4
TAILS = (0.05, 0.95)


@dataclass(frozen=True, kw_only=True, slots=True)
class Continuation:
    """Logarithm of the step time at a group size: as predicted, and by the other continuations."""

    value: float
    lowest: float
    highest: float


def continued(sizes: Sequence[int], seconds: Sequence[float], group_size: int) -> Continuation:
    """The step time at a group size from those at two others or more, in ascending order."""
    logs = np.log(seconds)
    if group_size <= sizes[-1]:
        value = float(np.interp(math.log(group_size), np.log(sizes), logs))
        return Continuation(value=value, lowest=value, highest=value)
    last = float(logs[-1])
    if len(sizes) == 2:
        rise = max(0.0, (last - float(logs[0])) / math.log2(sizes[1] / sizes[0]))
        octaves = math.log2(group_size / sizes[-1])
        damped = last + rise * (1 - 2**-octaves)
        return Continuation(value=damped, lowest=last, highest=last + rise * octaves)
    saturating, growing = (
        _fitted(sizes, seconds, group_size, linear=linear) for linear in (False, True)
    )
    value = growing if len(sizes) >= FEWEST_FOR_LINEAR else saturating
    return Continuation(
        value=value, lowest=min(last, saturating, value), highest=max(growing, value)
    )


def _fitted(
    sizes: Sequence[int], seconds: Sequence[float], group_size: int, *, linear: bool
) -> float:
    """Logarithm of the law at a group size; not below the last measured step.

    Non-negative least squares of relative residuals.
    """
    from scipy.optimize import nnls

    n = np.array([*sizes, group_size], dtype=float)
    terms = [np.ones_like(n), (n - 1) / n, np.log2(n), *([n - 1] if linear else [])]
    matrix, times = np.column_stack(terms), np.asarray(seconds)
    coefficients, _ = nnls(matrix[:-1] / times[:, None], np.ones_like(times))
    fitted = matrix @ coefficients
    return float(np.log(fitted[-1] * max(1.0, times[-1] / fitted[-2])))


@dataclass(frozen=True, kw_only=True, slots=True)
class Error:
    """Distribution of ln(measured ÷ predicted step time), one doubling beyond the data."""

    low: float
    """The 5 % quantile; at most 0."""
    high: float
    """The 95 % quantile; at least 0."""

    def at(self, octaves: float) -> tuple[float, float]:
        """(low, high) so many doublings away from the data: they grow with the root of them."""
        return self.low * math.sqrt(octaves), self.high * math.sqrt(octaves)


def conformal(residuals: Sequence[float]) -> Error:
    """The error that hold-outs show: order statistics as in split conformal prediction.

    Among m exchangeable residuals, the next one lies between the ⌊0.05 (m+1)⌋-th and the
    ⌈0.95 (m+1)⌉-th with at least 90 %, if there are at least 19.
    """
    ordered, count = sorted(residuals), len(residuals)
    # Rounded first: 0.05 × 20 must be 1, not a little less.
    below = max(1, math.floor(round(TAILS[0] * (count + 1), 9)))
    above = min(count, math.ceil(round(TAILS[1] * (count + 1), 9)))
    return Error(low=min(0.0, ordered[below - 1]), high=max(0.0, ordered[above - 1]))


@cache
def published_error(sizes: int) -> Error:
    """The error of predictions from `sizes` group sizes on the published tables of weak scaling
    that ship with dpbench: from two (or one) of them, or from three and more."""
    series = published_series(RESULTS / "published" / "weak_scaling.csv")
    return conformal([residual for one in series for residual in residuals(one, max(sizes, 2))])


def residuals(series: Series, sizes: int) -> list[float]:
    """ln(measured ÷ predicted) ÷ √doublings of each withheld point, predicted from the smaller
    ones: from exactly two, or from three and more."""
    seconds = _relative_seconds(series)
    found = []
    for place, n in enumerate(series.group_sizes):
        for count in range(2, place + 1):
            last = series.group_sizes[count - 1]
            if min(count, 3) == min(sizes, 3) and n <= FARTHEST * last:
                predicted = continued(series.group_sizes[:count], seconds[:count], n).value
                found.append(
                    (math.log(seconds[place]) - predicted) / math.sqrt(math.log2(n / last))
                )
    return found


def _relative_seconds(series: Series) -> list[float]:
    """Step times, apart from a factor that is the same at all group sizes."""
    return [n / speed.value for n, speed in zip(series.group_sizes, series.speeds, strict=True)]


def project(series: Series, group_sizes: Sequence[int] | None) -> tuple[ProjectedRow, ...]:
    """A row for each group size, ascending; None for the measured ones and 2 and 4 × the largest.

    Raises UsageError for a series of a single group size.
    """
    if len(series.rows) < 2:
        sizes = ", ".join(map(str, series.group_sizes))
        raise UsageError(
            f"{series.label}: a projection needs at least two group sizes, got {sizes}; measure "
            "more, for example with dpbench sweep --group-sizes 1,2,4"
        )
    last = series.group_sizes[-1]
    wanted = group_sizes or (*series.group_sizes, 2 * last, FARTHEST * last)
    return tuple(_row(series, n) for n in sorted(set(wanted)))


def _row(series: Series, n: int) -> ProjectedRow:
    for measured in series.rows:
        if measured.group_size == n:
            return series.measured_row(measured)
    sizes = series.group_sizes
    if (reason := _refusal(sizes, n)) is not None:
        return ProjectedRow(group_size=n, kind="refused", reason=reason)
    found = continued(sizes, _relative_seconds(series), n)
    nearest = min(abs(math.log2(n / size)) for size in sizes)
    error = published_error(len(sizes)).at(nearest)
    parts = [*error, found.lowest - found.value, found.highest - found.value]
    slower, faster = reach(parts, *_noise(series, n))[::-1]
    kind: Kind = "extrapolated" if n > sizes[-1] else "interpolated"
    return series.predicted_row(n, kind, n * math.exp(-found.value), (slower, faster), len(sizes))


def _noise(series: Series, n: int) -> list[float]:
    """The noise of the measured speeds that a prediction rests on: of the largest group, or of
    both neighbors, each by its weight in the interpolation."""
    sizes, noises = series.group_sizes, [*map(noise_of, series.speeds)]
    if n > sizes[-1]:
        return noises[-1:]
    above = next(place for place, size in enumerate(sizes) if size > n)
    first, last = sizes[above - 1], sizes[above]
    weight = math.log(n / first) / math.log(last / first)
    return [(1 - weight) * noises[above - 1], weight * noises[above]]


def _refusal(sizes: Sequence[int], n: int) -> str | None:
    if n < sizes[0]:
        return f"below the smallest measured group size ({sizes[0]})"
    if n > FARTHEST * sizes[-1]:
        return (
            f"more than {FARTHEST} × the largest measured group size ({sizes[-1]}); "
            "simulate larger groups with --topology"
        )
    return None
