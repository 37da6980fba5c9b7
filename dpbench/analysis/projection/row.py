"""One row of a projection, measured or predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpbench.analysis.estimate import Estimate

Origin = Literal["measured", "interpolated", "extrapolated", "next node", "projected", "refused"]
"""Where the numbers of a row come from; the strongest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectedRow:
    """A group size, and what one step costs there; a refused row has a reason and no numbers."""

    group_size: int
    kind: Origin
    reason: str | None = None
    """Why there are no numbers."""
    step_seconds: Estimate | None = None
    throughput: Estimate | None = None
    efficiency: Estimate | None = None


def banded(value: float, below: float, above: float, unit: str, *, sample_size: int) -> Estimate:
    """A predicted number; `below` and `above` are how far its logarithm may be off, positive."""
    return Estimate(
        value=value,
        low=value * math.exp(-below),
        high=value * math.exp(above),
        unit=unit,
        sample_size=sample_size,
        basis="model",
    )


def reach(cases: Sequence[float], *more: float) -> tuple[float, float]:
    """How far a value may lie below and above, both positive: the root of summed squares.

    `cases` are values with each input at one end of its interval, relative to the value itself, on
    a logarithmic scale; `more` are further parts that count to both sides.
    """
    below = math.hypot(*(min(0.0, case) for case in cases), *more)
    above = math.hypot(*(max(0.0, case) for case in cases), *more)
    return below, above


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookalike:
    """A published series that looks like a measured one, and how it went on."""

    name: str
    source: str
    efficiencies: tuple[tuple[int, float], ...]
    """(group size, efficiency) from the largest measured size on, relative to the smallest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """All rows of one series, and what they rest on."""

    label: str
    implementation: str
    implementation_label: str
    backend: str | None
    batch_size: int | None
    item: str
    """Items that its throughput counts: "images"; "" for a table of speedups."""
    reference: str
    """Baseline of its efficiencies, in words."""
    network: str | None
    """The network that its steps are simulated on; None for a law."""
    rows: tuple[ProjectedRow, ...]
    assumptions: tuple[str, ...] = ()
    alike: tuple[Lookalike, ...] = ()
    """Published series that look like this one; the most similar first."""
