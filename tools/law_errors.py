"""How well the law of `dpbench project` predicts published series, and the band that follows.

Each series withholds its larger group sizes, and the law predicts them from every prefix of two or
more. The band is conformal: order statistics of these errors. Across the boundary from one node to
several, steps take longer than any law through one node says; those errors are a set of their own.

`python -m tools.law_errors` prints the bands that `dpbench/analysis/projection/law.py` holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from dpbench.analysis.estimate import BAND_CONFIDENCE
from dpbench.analysis.projection.law import MAX_MULTIPLE, Band, continued, crosses
from dpbench.analysis.published import from_csv
from dpbench.analysis.rows import Row
from dpbench.shipped import RESULTS

TABLES = ("weak_scaling.csv", "scaling_series.csv")


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionError:
    """The error of one prediction of a withheld group size."""

    source: str
    curve: int
    """Number of the series that it was predicted from."""
    log_ratio: float
    """ln(measured ÷ predicted step time)."""
    scaled: float
    """The same ÷ the scale of the prediction."""
    log_ratio_if_kept: float
    """ln(measured ÷ predicted) if the last efficiency is kept."""


def published_curves() -> list[list[Row]]:
    """The series of weak scaling that ship with dpbench, each by ascending group size."""
    curves: dict[tuple[object, ...], list[Row]] = {}
    for table in TABLES:
        for row in from_csv(RESULTS / "published" / table):
            key = (table, row.source, row.implementation, row.batch_size)
            curves.setdefault(key, []).append(row)
    return [sorted(rows, key=lambda row: row.group_size) for rows in curves.values()]


@cache
def errors(*, across: bool) -> tuple[PredictionError, ...]:
    """The errors of all predictions on the published series, within a node or across its
    boundary."""
    found = []
    for number, curve in enumerate(published_curves()):
        speeds = {row.group_size: row.throughput.value for row in curve if row.throughput}
        sizes = [*speeds]
        # Step times, apart from a factor that is the same at all group sizes.
        seconds = [size / speed for size, speed in speeds.items()]
        per_node = curve[0].stated["gpus_per_node"] or 1
        for place, n in enumerate(sizes):
            for count in range(2, place + 1):
                known = sizes[:count]
                if n > MAX_MULTIPLE * known[-1] or crosses(known, n, per_node) is not across:
                    continue
                predicted = continued(known, seconds[:count], n)
                log_ratio = math.log(seconds[place]) - predicted.log_seconds
                found.append(
                    PredictionError(
                        source=curve[0].source,
                        curve=number,
                        log_ratio=log_ratio,
                        scaled=log_ratio / predicted.scale,
                        log_ratio_if_kept=math.log(seconds[place] / seconds[count - 1]),
                    )
                )
    return tuple(found)


def conformal(scaled: Sequence[float], *, middle: float = 0.0) -> tuple[float, float, float]:
    """(Low, middle, high): the band that holds the next of such errors with 90 % or more, if there
    are at least 19.

    Among m exchangeable errors, the next one lies between the ⌊0.05 (m+1)⌋-th and the
    ⌈0.95 (m+1)⌉-th (split conformal prediction).
    """
    ordered, count = sorted(scaled), len(scaled)
    tail = (1 - BAND_CONFIDENCE) / 2
    # Rounded first: 0.05 × 20 must be 1, not a little less.
    below = max(1, math.floor(round(tail * (count + 1), 9)))
    above = min(count, math.ceil(round((1 - tail) * (count + 1), 9)))
    return min(middle, ordered[below - 1]), middle, max(middle, ordered[above - 1])


def calibrate(*, across: bool) -> Band:
    """The band from all published series, within a node or across its boundary, and how many
    predictions lie in a band from all other series."""

    def band(found: Sequence[PredictionError]) -> tuple[float, float, float]:
        scaled = [error.scaled for error in found]
        return conformal(scaled, middle=median(scaled) if across else 0.0)

    found = errors(across=across)
    inside = 0
    for curve in {error.curve for error in found}:
        low, _, high = band([error for error in found if error.curve != curve])
        inside += sum(low <= one.scaled <= high for one in found if one.curve == curve)
    low, middle, high = band(found)
    return Band(low=low, middle=middle, high=high, inside=inside, predictions=len(found))


if __name__ == "__main__":
    for across in (False, True):
        print(calibrate(across=across))
