"""How well the law predicts published series, and thereby its band.

Each series withholds its larger group sizes, and the law predicts them from every prefix of two or
more. The band is conformal: order statistics of these errors. Across the boundary from one node to
several, steps take longer than any law through one node says; those errors are a set of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from dpbench.analysis.estimate import BAND_CONFIDENCE
from dpbench.analysis.projection.law import LARGEST_MULTIPLE, continued, crosses
from dpbench.analysis.published import PublishedRow, read_published
from dpbench.shipped import RESULTS

CALIBRATION_TABLES = ("weak_scaling.csv", "scaling_series.csv")
ALIKE = 0.10
"""Largest difference of two efficiencies that look alike."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookalike:
    """A published series that looks like a measured one, and how it went on."""

    name: str
    source: str
    efficiencies: tuple[tuple[int, float], ...]
    """(group size, efficiency) from the largest measured size on, relative to the smallest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedCurve:
    """Step times of others along the group sizes, at a fixed batch per replica."""

    name: str
    source: str
    per_node: int
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    """Apart from a factor that is the same at all group sizes."""

    def efficiency(self, n: int, base: int) -> float:
        """Speed per replica at n, relative to that at `base`."""
        return self.seconds[self.sizes.index(base)] / self.seconds[self.sizes.index(n)]


@cache
def published_curves() -> tuple[PublishedCurve, ...]:
    """The series of weak scaling that ship with dpbench."""
    groups: dict[tuple[object, ...], list[PublishedRow]] = {}
    for table in CALIBRATION_TABLES:
        for line in read_published(RESULTS / "published" / table):
            key = (table, line.source, line.implementation, line.batch_size)
            groups.setdefault(key, []).append(line)
    return tuple(map(_published_curve, groups.values()))


def _published_curve(lines: Sequence[PublishedRow]) -> PublishedCurve:
    known = sorted(
        (line.group_size, line.throughput) for line in lines if line.throughput is not None
    )
    return PublishedCurve(
        name=lines[0].implementation,
        source=lines[0].source,
        per_node=lines[0].gpus_per_node or 1,
        sizes=tuple(n for n, _ in known),
        seconds=tuple(n / speed for n, speed in known),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Error:
    """The error of one prediction of a withheld group size."""

    curve: PublishedCurve
    crosses: bool
    log_ratio: float
    """ln(measured ÷ predicted step time)."""
    scaled: float
    """The same ÷ the scale of the prediction."""
    log_ratio_if_kept: float
    """ln(measured ÷ predicted) if the last efficiency is kept."""


@cache
def errors() -> tuple[Error, ...]:
    """The errors of all predictions on the published series."""
    return tuple(error for curve in published_curves() for error in _errors(curve))


def _errors(curve: PublishedCurve) -> Iterator[Error]:
    for place, n in enumerate(curve.sizes):
        for count in range(2, place + 1):
            sizes, seconds = curve.sizes[:count], curve.seconds[:count]
            if n > LARGEST_MULTIPLE * sizes[-1]:
                continue
            predicted = continued(sizes, seconds, n)
            log_ratio = math.log(curve.seconds[place]) - predicted.log_seconds
            yield Error(
                curve=curve,
                crosses=crosses(sizes, n, curve.per_node),
                log_ratio=log_ratio,
                scaled=log_ratio / predicted.scale,
                log_ratio_if_kept=math.log(curve.seconds[place] / seconds[-1]),
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """Errors to expect, relative to the scale of a prediction."""

    low: float
    """The 5 % quantile of the logarithm, at most `middle`."""
    middle: float
    """Shift of a prediction: 0 within a node, the median error across its boundary."""
    high: float
    """The 95 % quantile, at least `middle`."""


def conformal(scaled: Sequence[float], *, middle: float = 0.0) -> Band:
    """The band that holds the next of such errors with 90 % or more, if there are at least 19.

    Among m exchangeable errors, the next one lies between the ⌊0.05 (m+1)⌋-th and the
    ⌈0.95 (m+1)⌉-th (split conformal prediction).
    """
    ordered, count = sorted(scaled), len(scaled)
    tail = (1 - BAND_CONFIDENCE) / 2
    # Rounded first: 0.05 × 20 must be 1, not a little less.
    below = max(1, math.floor(round(tail * (count + 1), 9)))
    above = min(count, math.ceil(round((1 - tail) * (count + 1), 9)))
    return Band(
        low=min(middle, ordered[below - 1]), middle=middle, high=max(middle, ordered[above - 1])
    )


def band_of(found: Sequence[Error]) -> Band:
    """The band of these errors, which are all within a node or all across its boundary."""
    scaled = [error.scaled for error in found]
    return conformal(scaled, middle=median(scaled) if found[0].crosses else 0.0)


@cache
def band(*, across: bool) -> Band:
    """The band from all published series, within a node or across its boundary."""
    return band_of([error for error in errors() if error.crosses is across])


@cache
def held(*, across: bool) -> tuple[int, int]:
    """How many predictions lay in a band from the other series, and how many there are."""
    chosen = [error for error in errors() if error.crosses is across]
    inside = 0
    for curve in {error.curve for error in chosen}:
        others = band_of([error for error in chosen if error.curve != curve])
        own = [error.scaled for error in chosen if error.curve == curve]
        inside += sum(others.low <= scaled <= others.high for scaled in own)
    return inside, len(chosen)


def lookalikes(
    words: str, efficiency: float, sizes: Sequence[int], most: int = 3
) -> tuple[Lookalike, ...]:
    """Published series that continue where one with these `sizes` ends, the most similar first.

    They have its smallest and its largest group size and a further one, and within ten points its
    `efficiency` at the largest; those that share more words with `words` (model and device) come
    first.
    """
    wanted, first, last = _words(words), sizes[0], sizes[-1]
    found: list[tuple[int, float, Lookalike]] = []
    for curve in published_curves():
        if not {first, last} <= {*curve.sizes} or curve.sizes[-1] == last:
            continue
        difference = abs(curve.efficiency(last, first) - efficiency)
        if difference <= ALIKE:
            course = tuple((n, curve.efficiency(n, first)) for n in curve.sizes if n >= last)
            shared = wanted & _words(f"{curve.name} {curve.source}")
            other = Lookalike(name=curve.name, source=curve.source, efficiencies=course)
            found.append((-len(shared), difference, other))
    return tuple(other for *_, other in sorted(found, key=lambda one: one[:2])[:most])


def _words(text: str) -> set[str]:
    """The words that tell models and devices apart: "ResNet-50, A100" has resnet and a100."""
    return {word for word in re.findall(r"[a-z0-9]{3,}", text.lower()) if not word.isdigit()}
