"""Probabilities and quantiles of the normal, t, noncentral t and chi-square distributions.

These are the few that intervals and tests here need, so that no statistics library is required.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

STANDARD = NormalDist()
CONVERGED = 1e-15
MOST_TERMS = 100_000
NORMAL_FROM = 1e12
"""Degrees of freedom from which a t distribution equals the normal one to all digits."""


def _elementwise(function: Callable[..., float], arguments: int) -> Callable[..., Array]:
    return _as_floats(np.frompyfunc(function, arguments, 1))


def _as_floats(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda *values: np.asarray(function(*values), dtype=np.float64)


def _normal_quantile(probability: float) -> float:
    if 0 < probability < 1:
        return STANDARD.inv_cdf(probability)
    return {0.0: -math.inf, 1.0: math.inf}.get(probability, math.nan)


normal_quantile = _elementwise(_normal_quantile, 1)
"""Quantiles of the normal distribution for these probabilities."""


def t_below(degrees_of_freedom: ArrayLike, t: ArrayLike) -> Array:
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


def t_quantile(degrees_of_freedom: ArrayLike, probability: float) -> Array:
    """Quantile of t for a probability of 0.5 or more; element by element."""
    freedom = np.asarray(degrees_of_freedom, np.float64)
    if not 0.5 <= probability < 1:
        raise ValueError(f"t quantile: got probability {probability}, expected 0.5 to below 1")
    if freedom.ndim == 0:
        return np.array(_t_quantile_of_one(float(freedom), probability))
    return _t_quantiles(freedom, probability)


@lru_cache(maxsize=4096)
def _t_quantile_of_one(degrees_of_freedom: float, probability: float) -> float:
    """Kept, as a report asks for few of them hundreds of times."""
    return float(_t_quantiles(np.array([degrees_of_freedom]), probability)[0])


def _t_quantiles(freedom: Array, probability: float) -> Array:
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


def _t_density(freedom: Array, t: Array) -> Array:
    log_constant = _log_gamma((freedom + 1) / 2) - _log_gamma(freedom / 2)
    logs = log_constant - 0.5 * np.log(np.pi * freedom)
    return np.exp(logs - (freedom + 1) / 2 * np.log1p(t**2 / freedom))


_log_gamma = _elementwise(lambda x: math.lgamma(x) if x > 0 else math.nan, 1)


def incomplete_beta(a: Array, b: Array, x: Array, rest: Array) -> Array:
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


def _below(nodes: Array, weights: Array, t: float, noncentral: float) -> float:
    """Probability of a smaller t: that of a normal value, integrated over its possible
    deviations."""
    values = t * nodes - noncentral
    return float(weights @ [0.5 * math.erfc(-value / math.sqrt(2)) for value in values])


def _deviations(freedom: float, t: float) -> tuple[Array, Array]:
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
