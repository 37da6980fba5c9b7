"""Rows of a measured series at other group sizes, by the law, with bands from its track record."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpbench.analysis.projection.law import FARTHEST, continued, crosses, refusal
from dpbench.analysis.projection.row import Origin, ProjectedRow, reach
from dpbench.analysis.projection.series import Series, noise_of
from dpbench.analysis.projection.track_record import band
from dpbench.errors import UsageError


def project(
    series: Series, group_sizes: Sequence[int] | None, per_node: int | None = None
) -> tuple[ProjectedRow, ...]:
    """A row for each group size, ascending; None for the measured ones and 2 and 4 × the largest.

    `per_node` is how many replicas a node has; None if that is not known, which no row then
    crosses. Raises UsageError for a series of a single group size.
    """
    if len(series.rows) < 2:
        sizes = ", ".join(map(str, series.group_sizes))
        raise UsageError(
            f"{series.label}: a projection needs at least two group sizes, got {sizes}; measure "
            "more, for example with dpbench sweep --group-sizes 1,2,4"
        )
    last = series.group_sizes[-1]
    wanted = group_sizes or (*series.group_sizes, 2 * last, FARTHEST * last)
    return tuple(_row(series, n, per_node) for n in sorted(set(wanted)))


def _row(series: Series, n: int, per_node: int | None) -> ProjectedRow:
    for measured in series.rows:
        if measured.group_size == n:
            return series.measured_row(measured)
    sizes, speeds = series.group_sizes, series.speeds
    reason = refusal(sizes, n) or series.beyond_one_machine(n, per_node)
    if reason is not None:
        return ProjectedRow(group_size=n, kind="refused", reason=reason)
    seconds = [size / speed.value for size, speed in zip(sizes, speeds, strict=True)]
    predicted = continued(sizes, seconds, n)
    across = crosses(sizes, n, per_node)
    errors = band(across=across)
    shift = errors.middle * predicted.scale
    parts = [(end - errors.middle) * predicted.scale for end in (errors.low, errors.high)]
    faster, slower = reach(parts, predicted.noise([*map(noise_of, speeds)]))
    kind: Origin = "interpolated"
    if n > sizes[-1]:
        kind = "next node" if across else "extrapolated"
    speed = n * math.exp(-predicted.log_seconds - shift)
    return series.predicted_row(n, kind, speed, (slower, faster), len(sizes))
