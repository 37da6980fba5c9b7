"""A law for the step time of larger group sizes than the measured ones.

Beyond the data, the logarithm of the step time goes on rising: in the first doubling by a third of
the mean rise per doubling that was measured, in each further one by half of that. A step that
became shorter is not expected to become still shorter. On published series this errs less than a
least-squares fit of latency and bandwidth terms and less than keeping the last efficiency
(docs/scaling.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpbench.analysis.projection.curve import Origin, ProjectedPoint, ScalingCurve, noise_of
from dpbench.errors import UsageError

MAX_MULTIPLE = 4
"""Largest multiple of the largest measured group size that is predicted."""
FIRST_RISE_SHARE = 1 / 3
"""Rise at the first doubling beyond the data ÷ mean rise per doubling within the data."""
RISE_DAMPING = 1 / 2
"""Rise at a further doubling beyond the data ÷ rise at the doubling before it."""
FLAT_CURVE_RISE = 0.01
"""Rise per doubling that is added to the measured one to scale errors: flat curves err, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """Errors of the law on published series, as logarithms relative to the scale of a prediction.

    Ninety percent of them lie between `low` and `high`.
    """

    low: float
    middle: float
    """Shift of a prediction: 0 within a node, the median error across its boundary."""
    high: float
    inside: int
    """Number of the `predictions` that lay in a band from all other series."""
    predictions: int


# Both follow from the published series; their test computes them anew.
WITHIN_NODE = Band(
    low=-0.1480466941720107, middle=0.0, high=0.5484785022997777, inside=201, predictions=224
)
ACROSS_NODES = Band(
    low=-0.13038579716866439,
    middle=0.21811104272085852,
    high=1.343385811369599,
    inside=59,
    predictions=65,
)


def continued(
    sizes: Sequence[int], seconds: Sequence[float], group_size: int
) -> tuple[float, float, float]:
    """The logarithm of the step time at a larger group size than the two or more measured ones,
    which ascend; the rise beyond the last of them ÷ the whole measured rise; and the scale of the
    error, see `error_scale`. `seconds` may have any unit."""
    first, last = math.log(seconds[0]), math.log(seconds[-1])
    measured = math.log2(sizes[-1] / sizes[0])
    beyond = math.log2(group_size / sizes[-1])
    part = 0.0
    if last > first:
        part = FIRST_RISE_SHARE * (1 - RISE_DAMPING**beyond) / (1 - RISE_DAMPING) / measured
    rise = max(0.0, last - first)
    return last + part * rise, part, error_scale(rise / measured, beyond)


def error_scale(rise: float, doublings: float) -> float:
    """Scale of the error of a logarithm so many doublings away from the data, where it rises by
    `rise` per doubling: on published series it grows with the root of both."""
    return math.sqrt((FLAT_CURVE_RISE + rise) * doublings)


def crosses(sizes: Sequence[int], n: int, per_node: int | None) -> bool:
    """Whether n replicas need a second node, and all measured groups fit one."""
    return per_node is not None and sizes[-1] <= per_node < n


def project_by_law(
    curve: ScalingCurve, group_sizes: Sequence[int] | None, per_node: int | None = None
) -> ScalingCurve:
    """The curve with a point for each group size; None for the measured ones and 2 and 4 × the
    largest.

    `per_node` is how many replicas a node has; None if that is not known, which no
    point then crosses. Raises UsageError for a curve of a single group size.
    """
    sizes = curve.group_sizes
    if len(sizes) < 2:
        raise UsageError(
            f"{curve.label}: a projection needs at least two group sizes, got {sizes[0]}; measure "
            "more, for example with dpbench sweep --group-sizes 1,2,4"
        )
    throughputs = curve.throughputs
    seconds = [n / throughput.value for n, throughput in zip(sizes, throughputs, strict=True)]
    points = list[ProjectedPoint]()
    for n in sorted({*(group_sizes or (*sizes, 2 * sizes[-1], MAX_MULTIPLE * sizes[-1]))}):
        reason = curve.beyond_one_machine(n, per_node)
        if n < sizes[-1]:
            reason = f"below the largest measured group size ({sizes[-1]}); measure it"
        elif n > MAX_MULTIPLE * sizes[-1]:
            reason = (
                f"more than {MAX_MULTIPLE} × the largest measured group size ({sizes[-1]}); "
                "simulate larger groups with --topology"
            )
        if n in sizes:
            points.append(curve.measured_point(n))
        elif reason is not None:
            points.append(ProjectedPoint(group_size=n, origin="refused", reason=reason))
        else:
            log_seconds, part, scale = continued(sizes, seconds, n)
            across = crosses(sizes, n, per_node)
            band = ACROSS_NODES if across else WITHIN_NODE
            errors = [(end - band.middle) * scale for end in (band.low, band.high)]
            # The first and the last measured step may be off, independently.
            first, last = noise_of(throughputs[0]), noise_of(throughputs[-1])
            noise = math.hypot(part * first, (1 + part) * last)
            errors += [noise, -noise]
            throughput = n * math.exp(-log_seconds - band.middle * scale)
            origin: Origin = "next node" if across else "extrapolated"
            points.append(curve.predicted_point(n, origin, throughput, errors, len(sizes)))
    return replace(curve, points=tuple(points))
