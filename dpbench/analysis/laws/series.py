"""A scaling series: one thing measured at several group sizes, as a fit takes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from dpbench.analysis.baselines import Speed
from dpbench.analysis.estimate import LogMean
from dpbench.errors import UsageError
from dpbench.specs import Scaling


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A step at one group size."""

    group_size: int
    step_seconds: LogMean
    """Of one optimizer step, or of a published fixed amount of work."""
    speed: Speed | None = None
    """Of a sweep: with the throughput of every repetition, for speedups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoneStep:
    """A step on one replica alone, at some batch; what strong scaling divides."""

    batch_size: int
    step_seconds: LogMean


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Step times along group sizes; everything else stays the same."""

    label: str
    points: tuple[Point, ...]
    """By ascending group size, each once."""
    scaling: Scaling = "weak"
    items_per_step: float = 1.0
    """Of one replica in weak scaling, of the whole group in strong scaling."""
    unit: str = "images/s"
    """Of its throughput."""
    implementation: str | None = None
    """None: published, by whatever implementation."""
    batch_size: int | None = None
    """Per replica in weak scaling, of the group in strong scaling; None: not known."""
    replicas_per_node: int | None = None
    """None: not known."""
    lone_steps: tuple[LoneStep, ...] = ()
    """Only in strong scaling, by ascending batch size."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any(a >= b for a, b in pairwise(self.group_sizes)):
            raise ValueError(f"{self.label}: group sizes must ascend, got {self.group_sizes}")

    @property
    def group_sizes(self) -> tuple[int, ...]:
        return tuple(point.group_size for point in self.points)

    @property
    def relative(self) -> bool:
        """Speedups: the step times are in steps of one replica, not in seconds."""
        return self.unit == "×"

    def items(self, group_size: int) -> float:
        """Items of one step of the whole group."""
        return self.items_per_step * (group_size if self.scaling == "weak" else 1)

    def up_to(self, largest: int) -> Series:
        """The same without the points beyond a group size; the strictly smaller world of a fit."""
        kept = tuple(point for point in self.points if point.group_size <= largest)
        return replace(self, points=kept)

    def point(self, group_size: int) -> Point | None:
        return next((p for p in self.points if p.group_size == group_size), None)

    def throughput(self, point: Point) -> LogMean:
        """Items per second: as uncertain, on the logarithm, as the step time."""
        seconds = point.step_seconds
        return replace(seconds, value=self.items(point.group_size) / seconds.value)


def require_points(series: Series, *, because: str = "") -> None:
    """Raises UsageError for a series that nothing can be fitted to."""
    if len(series.points) < 2:
        sizes = ", ".join(map(str, series.group_sizes)) or "none"
        raise UsageError(
            f"{series.label}: a fit takes at least two group sizes, got {sizes}{because}"
        )
