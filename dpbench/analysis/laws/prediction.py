"""A prediction, how it came about, and when there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.provenance import FARTHEST, Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The speed at one group size; a refused one has a reason in place of numbers."""

    group_size: int
    kind: Kind
    step_seconds: Estimate | None = None
    """Of one optimizer step; its basis is "model" unless it was measured."""
    throughput: Estimate | None = None
    """Items of all replicas together, per second."""
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """What a fit is based on, and so where it may speak."""

    measured: tuple[int, ...]
    """Group sizes, ascending."""
    replicas_per_node: int | None = None
    """None: not known, so that no prediction is refused for it."""
    most_replicas: int | None = None
    """A batch that is shared out has at least a sample for each; None where it is not shared."""

    def kind(self, group_size: int) -> Kind:
        if self.refusal(group_size):
            return "refused"
        if group_size in self.measured:
            return "measured"
        return "interpolated" if group_size < self.measured[-1] else "extrapolated"

    def refusal(self, group_size: int) -> str | None:
        """Why there is no prediction; None where there is one."""
        smallest, largest = self.measured[0], self.measured[-1]
        if group_size < smallest:
            return f"{group_size} is below the smallest measured group size, {smallest}"
        if group_size > FARTHEST * largest:
            return (
                f"{group_size} is {group_size / largest:.3g} × the largest measured group size, "
                f"{largest}; a fitted curve is trusted up to {FARTHEST} × "
                "(dpbench project simulates the step on a given network)"
            )
        if self.most_replicas is not None and group_size > self.most_replicas:
            return (
                f"{group_size} replicas cannot share a batch of {self.most_replicas}; "
                "each needs a sample"
            )
        node = self.replicas_per_node
        if node is not None and group_size > node >= largest:
            return (
                f"{group_size} replicas take more than one node of {node}, and no measurement "
                "crosses nodes; what their link costs is unknown "
                "(dpbench project takes a --topology)"
            )
        return None

    def octaves(self, group_size: int) -> float:
        """Doublings between a group size and the nearest measured one."""
        return min(abs(math.log2(group_size / n)) for n in self.measured)


def sizes_beyond(measured: Sequence[int]) -> tuple[int, ...]:
    """What is predicted unless something else is asked for: twice and four times the largest."""
    return 2 * max(measured), FARTHEST * max(measured)
