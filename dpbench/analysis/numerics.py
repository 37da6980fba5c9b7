"""Non-negative least squares, a smooth curve through points, a root finder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

MOST_ROUNDS = 100


def nonnegative_least_squares(matrix: ArrayLike, targets: ArrayLike) -> Array:
    """The coefficients, none below zero, whose combination of columns is nearest to `targets`.

    The active-set method of Lawson and Hanson (1974): a column enters while that lowers the
    residual, and leaves when its coefficient would be negative.
    """
    a, y = np.asarray(matrix, np.float64), np.asarray(targets, np.float64)
    count = a.shape[1]
    found = np.zeros(count)
    entered = np.zeros(count, dtype=bool)
    least = 10 * np.finfo(np.float64).eps * max(a.shape) * float(np.abs(a).sum(axis=0).max())
    least *= float(np.abs(y).max(initial=0.0)) or 1.0
    for _ in range(MOST_ROUNDS):
        gain = np.where(entered, -np.inf, a.T @ (y - a @ found))
        if entered.all() or gain.max() <= least:
            break
        entered[gain.argmax()] = True
        while True:
            trial = np.zeros(count)
            trial[entered] = np.linalg.lstsq(a[:, entered], y, rcond=None)[0]
            below = entered & (trial <= 0)
            if not below.any():
                break
            # As far towards the trial solution as all coefficients stay non-negative.
            share = float((found[below] / (found[below] - trial[below])).min())
            found += share * (trial - found)
            entered &= found > least * np.finfo(np.float64).eps
            found[~entered] = 0.0
        found = trial
    return found


class MonotoneCurve:
    """A cubic interpolation with no more extrema than the points.

    The slopes follow Fritsch and Butland (1984): harmonic means of the neighbouring slopes, zero at
    an extremum.
    """

    def __init__(self, places: ArrayLike, values: ArrayLike) -> None:
        """Places must rise strictly; there must be at least two."""
        self._x, self._y = np.asarray(places, np.float64), np.asarray(values, np.float64)
        widths, slopes = np.diff(self._x), np.diff(self._y) / np.diff(self._x)
        self._slopes = _slopes(widths, slopes)

    def __call__(self, at: ArrayLike) -> Array:
        """Values of the curve; outside of the points the outermost cubic continues."""
        where = np.asarray(at, np.float64)
        part = np.clip(np.searchsorted(self._x, where, "right") - 1, 0, len(self._x) - 2)
        width = self._x[part + 1] - self._x[part]
        u = (where - self._x[part]) / width
        start, end = self._y[part], self._y[part + 1]
        rise, fall = width * self._slopes[part], width * self._slopes[part + 1]
        found: Array = (
            start * (1 + 2 * u) * (1 - u) ** 2
            + rise * u * (1 - u) ** 2
            + end * u**2 * (3 - 2 * u)
            + fall * u**2 * (u - 1)
        )
        return found


def _slopes(widths: Array, slopes: Array) -> Array:
    if len(slopes) == 1:
        return np.repeat(slopes, 2)
    before, after = slopes[:-1], slopes[1:]
    first, second = 2 * widths[1:] + widths[:-1], widths[1:] + 2 * widths[:-1]
    same = before * after > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        harmonic = (first + second) / (first / before + second / after)
    inner = np.where(same, harmonic, 0.0)
    return np.concatenate(
        [[_end_slope(widths, slopes)], inner, [_end_slope(widths[::-1], slopes[::-1])]]
    )


def _end_slope(widths: Sequence[float] | Array, slopes: Sequence[float] | Array) -> float:
    """Slope of the parabola through three points, limited so that it keeps the direction."""
    near, far = float(slopes[0]), float(slopes[1])
    slope = ((2 * widths[0] + widths[1]) * near - widths[0] * far) / (widths[0] + widths[1])
    if slope * near <= 0:
        return 0.0
    if near * far <= 0 and abs(slope) > 3 * abs(near):
        return 3 * near
    return float(slope)


def root(function: Callable[[float], float], low: float, high: float, *, tolerance: float) -> float:
    """Where a continuous function is zero, between two places of opposite sign.

    The secant between the ends, with the Illinois rule: an end that stays counts half as much.
    """
    at_low, at_high = function(low), function(high)
    if at_low == 0 or at_high == 0:
        return low if at_low == 0 else high
    if at_low * at_high > 0:
        raise ValueError(f"root: got {at_low} and {at_high} at both ends, expected opposite signs")
    last = 0
    for _ in range(MOST_ROUNDS):
        if high - low <= tolerance:
            break
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        found = function(middle)
        if found == 0:
            return middle
        if found * at_high > 0:
            if abs(middle - high) <= tolerance / 4 and last == 1:
                return middle
            high, at_high = middle, found
            at_low = at_low / 2 if last == 1 else at_low
            last = 1
        else:
            if abs(middle - low) <= tolerance / 4 and last == -1:
                return middle
            low, at_low = middle, found
            at_high = at_high / 2 if last == -1 else at_high
            last = -1
    return (low + high) / 2
