"""The few numerical methods that intervals, tests and fits need, so that no library is required.

Probabilities and quantiles of the normal, t, noncentral t and chi-square distributions; and
non-negative least squares, a smooth curve through points, a root finder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

STANDARD = NormalDist()
CONVERGED = 1e-15
MOST_TERMS = 100_000
NORMAL_FROM = 1e12
"""Degrees of freedom from which a t distribution equals the normal one to all digits."""


def _elementwise(function: Callable[..., float], arguments: int) -> Callable[..., Floats]:
    of_objects: Any = np.frompyfunc(function, arguments, 1)
    return lambda *values: np.asarray(of_objects(*values), dtype=np.float64)


def _normal_quantile(probability: float) -> float:
    if 0 < probability < 1:
        return STANDARD.inv_cdf(probability)
    return {0.0: -math.inf, 1.0: math.inf}.get(probability, math.nan)


normal_quantile = _elementwise(_normal_quantile, 1)
"""Quantiles of the normal distribution for these probabilities."""


def t_below(degrees_of_freedom: ArrayLike, t: ArrayLike) -> Floats:
    """Cumulative distribution of t; element by element, NaN where either is."""
    freedom, values = np.broadcast_arrays(
        np.asarray(degrees_of_freedom, np.float64), np.asarray(t, np.float64)
    )
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        squared = values**2
        share = np.where(np.isinf(squared), 0.0, freedom / (freedom + squared))
        rest = np.where(np.isinf(squared), 1.0, squared / (freedom + squared))
        tail = 0.5 * incomplete_beta(freedom / 2, np.full_like(share, 0.5), share, rest)
    found = np.where(values > 0, 1 - tail, tail)
    large = freedom >= NORMAL_FROM
    if large.any():
        found[large] = [STANDARD.cdf(value) for value in values[large]]
    return found


def t_quantile(degrees_of_freedom: ArrayLike, probability: float) -> Floats:
    """Quantile of t for a probability of 0.5 or more; element by element."""
    freedom = np.asarray(degrees_of_freedom, np.float64)
    if not 0.5 <= probability < 1:
        raise ValueError(f"t quantile: got probability {probability}, expected 0.5 to below 1")
    if freedom.ndim == 0:
        return np.array(_t_quantile_of_one(float(freedom), probability))
    return _t_quantiles(freedom, probability)


@lru_cache(maxsize=4096)
def _t_quantile_of_one(degrees_of_freedom: float, probability: float) -> float:
    """Cached quantile of one freedom: a report asks for few of them hundreds of times."""
    return float(_t_quantiles(np.array([degrees_of_freedom]), probability)[0])


def _t_quantiles(freedom: Floats, probability: float) -> Floats:
    normal = STANDARD.inv_cdf(probability)
    found = np.where(np.isnan(freedom), np.nan, normal)
    # Above zero the distribution function is concave, so Newton's steps from a smaller value,
    # such as the normal quantile, never overshoot.
    known = freedom < NORMAL_FROM
    with np.errstate(invalid="ignore"):
        for _ in range(200):
            step = (probability - t_below(freedom[known], found[known])) / _t_density(
                freedom[known], found[known]
            )
            found[known] += step
            if not np.any(step > 100 * CONVERGED * found[known]):
                break
    return found


def _t_density(freedom: Floats, t: Floats) -> Floats:
    log_constant = _log_gamma((freedom + 1) / 2) - _log_gamma(freedom / 2)
    logs = log_constant - 0.5 * np.log(np.pi * freedom)
    return np.exp(logs - (freedom + 1) / 2 * np.log1p(t**2 / freedom))


_log_gamma = _elementwise(lambda x: math.lgamma(x) if x > 0 else math.nan, 1)


def incomplete_beta(a: Floats, b: Floats, x: Floats, rest: Floats) -> Floats:
    """The regularized incomplete beta function for arrays of one shape; NaN outside of [0, 1].

    `rest` is 1 - x, which the caller may know to more digits than a difference leaves.
    """
    found = np.where((x >= 0) & (rest >= 0) & (a > 0) & (b > 0), x, np.nan)
    inside = (found > 0) & (rest > 0)
    a, b, x, rest = a[inside], b[inside], x[inside], rest[inside]
    swap = x > (a + 1) / (a + b + 2)  # where the continued fraction of the other tail is shorter
    p, q, y = np.where(swap, b, a), np.where(swap, a, b), np.where(swap, rest, x)
    other = np.where(swap, x, rest)
    log_front = _log_gamma(p + q) - _log_gamma(p) - _log_gamma(q) + p * np.log(y)
    # Steps with numbers take a fifth of the time of steps with arrays of one number.
    given = [each.item() if each.size == 1 else each for each in (p, q, y)]
    part = np.exp(log_front + q * np.log(other)) / p / _beta_fraction(*given)
    found[inside] = np.where(swap, 1 - part, part)
    return found


def _beta_fraction(a: Any, b: Any, x: Any) -> Any:
    """The continued fraction of the incomplete beta function, by Lentz's method; of numbers or of
    arrays of one shape."""
    value, c, d = 1.0, 1.0, 0.0
    for term in range(1, MOST_TERMS):
        m = term // 2
        if term % 2:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + numerator * d)
        c = 1 + numerator / c
        value = value * c * d
        unsettled = abs(c * d - 1) > CONVERGED
        if not (unsettled if isinstance(unsettled, bool) else unsettled.any()):
            break
    return value


@lru_cache(maxsize=1024)
def chi_square_quantile_above(degrees_of_freedom: float, tail: float) -> float:
    """The value that a chi-square variable exceeds with probability `tail`."""
    low, high = 0.0, degrees_of_freedom + 10.0
    while _gamma_above(degrees_of_freedom / 2, high / 2) > tail:
        low, high = high, 2 * high
    while high - low > 4 * CONVERGED * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        above = _gamma_above(degrees_of_freedom / 2, middle / 2) > tail
        low, high = (middle, high) if above else (low, middle)
    return (low + high) / 2


def _gamma_above(a: float, x: float) -> float:
    """The upper regularized incomplete gamma function."""
    if x <= 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for n in range(1, MOST_TERMS):
            term *= x / (a + n)
            total += term
            if term < CONVERGED * total:
                break
        return 1 - front * total
    b = x + 1 - a
    c, d = math.inf, 1 / b
    value = d
    for n in range(1, MOST_TERMS):
        numerator = -n * (n - a)
        b += 2
        d = 1 / (b + numerator * d)
        c = b + numerator / c
        value *= c * d
        if abs(c * d - 1) < CONVERGED:
            break
    return front * value


@lru_cache(maxsize=1024)
def _noncentrality(degrees_of_freedom: float, probability: float, t: float) -> float:
    """The noncentrality at which a t variable stays below `t` with that probability."""
    quantile = STANDARD.inv_cdf(probability)
    if math.isnan(degrees_of_freedom) or math.isnan(t):
        return math.nan
    if degrees_of_freedom >= NORMAL_FROM:
        return t - quantile
    nodes, weights = _deviations(degrees_of_freedom, t)
    low = high = t - quantile  # for a known deviation; then extended as needed
    step = 1.0
    while _below(nodes, weights, t, low) < probability:
        low, step = low - step, 2 * step
    step = 1.0
    while _below(nodes, weights, t, high) > probability:
        high, step = high + step, 2 * step
    while high - low > 1e-12 * max(abs(high), 1.0):
        middle = (low + high) / 2
        if _below(nodes, weights, t, middle) > probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


noncentrality = _elementwise(_noncentrality, 3)
"""The noncentralities at which t variables of these degrees of freedom stay, with these
probabilities, below these values; NaN where a value is."""


@lru_cache(maxsize=1024)
def noncentral_t_below(degrees_of_freedom: float, noncentral: float, t: float) -> float:
    """Cumulative distribution of noncentral t: the probability of a value below `t`."""
    if degrees_of_freedom >= NORMAL_FROM:
        return STANDARD.cdf(t - noncentral)
    nodes, weights = _deviations(degrees_of_freedom, t)
    return min(1.0, _below(nodes, weights, t, noncentral))


def _below(nodes: Floats, weights: Floats, t: float, noncentral: float) -> float:
    """Probability of a smaller t: that of a normal value, integrated over its possible
    deviations."""
    values = t * nodes - noncentral
    return float(weights @ [0.5 * math.erfc(-value / math.sqrt(2)) for value in values])


def _deviations(freedom: float, t: float) -> tuple[Floats, Floats]:
    """Nodes and weights to integrate over the standard deviation of a sample of normal values:
    Gauss-Legendre in panels, none of which is wider than the step of the integrand."""
    spread = 1 / math.sqrt(2 * freedom)
    low, high = max(0.0, 1 - 10 * spread), 1 + 10 * spread
    panels = max(16, math.ceil((high - low) * abs(t) / 3))
    inner, inner_weights = np.polynomial.legendre.leggauss(12)
    width = (high - low) / panels
    starts = low + width * np.arange(panels)
    places = (starts[:, None] + width * (inner + 1) / 2).ravel()
    half = freedom / 2
    log_constant = math.log(2) + half * math.log(half) - math.lgamma(half)
    density = np.exp(log_constant + (freedom - 1) * np.log(places) - half * places**2)
    all_weights = np.tile(inner_weights, panels) * density
    return places, all_weights / all_weights.sum()


MOST_ROUNDS = 100


def nonnegative_least_squares(matrix: ArrayLike, targets: ArrayLike) -> Floats:
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

    def __call__(self, at: ArrayLike) -> Floats:
        """Values of the curve; outside of the points the outermost cubic continues."""
        where = np.asarray(at, np.float64)
        part = np.clip(np.searchsorted(self._x, where, "right") - 1, 0, len(self._x) - 2)
        width = self._x[part + 1] - self._x[part]
        u = (where - self._x[part]) / width
        start, end = self._y[part], self._y[part + 1]
        rise, fall = width * self._slopes[part], width * self._slopes[part + 1]
        found: Floats = (
            start * (1 + 2 * u) * (1 - u) ** 2
            + rise * u * (1 - u) ** 2
            + end * u**2 * (3 - 2 * u)
            + fall * u**2 * (u - 1)
        )
        return found


def _slopes(widths: Floats, slopes: Floats) -> Floats:
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


def _end_slope(widths: Sequence[float] | Floats, slopes: Sequence[float] | Floats) -> float:
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
