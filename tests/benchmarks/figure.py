"""One promised figure: what was measured, what was promised."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from scipy.special import stdtrit


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    name: str
    value: str
    target: str
    met: bool


@dataclass(frozen=True, slots=True)
class Ratio:
    """Geometric mean of paired ratios with its 95 % t interval."""

    value: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
        logs = [math.log(a / b) for a, b in zip(numerators, denominators, strict=True)]
        half = float(stdtrit(len(logs) - 1, 0.975)) * stdev(logs) / math.sqrt(len(logs))
        center = mean(logs)
        return cls(math.exp(center), math.exp(center - half), math.exp(center + half), len(logs))

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f}, n = {self.pairs})"


def alternating(
    first: Callable[[], float], second: Callable[[], float], pairs: int
) -> tuple[list[float], list[float]]:
    """Calls A B, B A, A B …: a drift of the machine falls on both alike."""
    firsts, seconds = [], []
    for number in range(pairs):
        if number % 2 == 0:
            firsts.append(first())
            seconds.append(second())
        else:
            seconds.append(second())
            firsts.append(first())
    return firsts, seconds
