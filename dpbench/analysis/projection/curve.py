"""A scaling curve as it was measured, and the points that a projection adds to it.

Rows come from a results folder or from a published table. All of them are weak scaling: with a
fixed batch in all, the batch of a replica changes along the curve, which no projection describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dpbench import units
from dpbench.analysis.estimate import Estimate, single_value
from dpbench.analysis.rows import Row
from dpbench.analysis.sentences import noise_warnings
from dpbench.specs.labels import row_name
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS, SINGLE

NEEDS_THROUGHPUTS = (
    "expected a throughput at a fixed batch per replica (images_per_second or seconds_per_step), "
    "got times of a fixed amount of work or speedups"
)
Origin = Literal["measured", "extrapolated", "next node", "projected", "refused"]
"""Where the numbers of a point come from; the strongest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectedPoint:
    """A group size, and what one step costs there; a refused one has a reason and no numbers."""

    group_size: int
    origin: Origin
    reason: str | None = None
    """Why there are no numbers."""
    step_seconds: Estimate | None = None
    """None also if the batch size is not known."""
    throughput: Estimate | None = None
    efficiency: Estimate | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingCurve:
    """One implementation on one backend at a fixed batch per replica."""

    rows: tuple[Row, ...]
    """Measured rows by ascending group size, each with a throughput. Where the implementation was
    not measured at group size 1, they begin with `single`."""
    points: tuple[ProjectedPoint, ...] = ()
    """What a projection says, by ascending group size."""
    assumptions: tuple[str, ...] = ()
    """What a simulation of its points rests on."""

    @property
    def label(self) -> str:
        """Such as "ddp/gloo, batch 32"; it ends with the item where a table counts several."""
        largest = self.rows[-1]
        name = row_name(largest.series, batch_size=largest.batch_size)
        return f"{name}, {largest.item}" if largest.published and largest.work else name

    @property
    def group_sizes(self) -> tuple[int, ...]:
        return tuple(row.group_size for row in self.rows)

    @property
    def throughputs(self) -> tuple[Estimate, ...]:
        """The throughputs of all replicas."""
        return tuple(row.throughput for row in self.rows if row.throughput is not None)

    @property
    def single(self) -> Estimate | None:
        """Throughput of `single`, which efficiencies are against; None if there is no such row."""
        single = self.rows[-1].reference
        return single.throughput if single and single.implementation == SINGLE else None

    @property
    def base(self) -> Estimate:
        """Throughput of one replica that scales linearly: `single`, or an equal share of the
        smallest measured group."""
        first = self.throughputs[0]
        return self.single or first.scaled(1 / self.group_sizes[0], unit=first.unit)

    @property
    def efficiency_reference(self) -> str:
        """What `base` is of, in words."""
        return SINGLE if self.single else "the smallest measured group"

    def beyond_one_machine(self, n: int, per_node: int | None) -> str | None:
        """Why its backend cannot connect n replicas on nodes of this size; None if it can, or if
        the size is not known."""
        backend = BACKENDS.get(self.rows[-1].backend or "")
        if per_node is None or n <= per_node or backend is None or not backend.one_host:
            return None
        ranks = units.counted(per_node, "rank")
        return f"{self.rows[-1].backend} works on one machine only, and a node has {ranks}"

    def measured_point(self, n: int) -> ProjectedPoint:
        """The point of a measured group size."""
        place = self.group_sizes.index(n)
        throughput = self.throughputs[place]
        efficiency = self.rows[place].efficiency
        if efficiency is None:  # without single and group size 1 it has no speedup
            efficiency = single_value(throughput.value / (n * self.base.value), "of linear")
        return self._point(n, "measured", throughput, efficiency)

    def predicted_point(
        self, n: int, origin: Origin, value: float, errors: Sequence[float], sample_size: int
    ) -> ProjectedPoint:
        """A group size with a predicted throughput; the efficiency has the noise of its base, too.

        Each of the independent `errors` is how much longer than predicted, on a logarithmic scale,
        a step may take, or shorter if it is below 0.
        """

        def banded(value: float, unit: str, *errors: float) -> Estimate:
            longer = math.hypot(*(max(0.0, error) for error in errors))
            shorter = math.hypot(*(max(0.0, -error) for error in errors))
            return Estimate(
                value=value,
                low=value * math.exp(-longer),
                high=value * math.exp(shorter),
                unit=unit,
                sample_size=sample_size,
                basis="model",
            )

        share = value / (n * self.base.value)
        noise = noise_of(self.base)
        efficiency = banded(share, "of linear", *errors, noise, -noise)
        return self._point(n, origin, banded(value, self.base.unit, *errors), efficiency)

    def _point(
        self, n: int, origin: Origin, throughput: Estimate, efficiency: Estimate
    ) -> ProjectedPoint:
        """The point with its step time, if the batch size is known."""
        largest = self.rows[-1]
        items = (largest.batch_size or 0) * n
        if largest.configuration is not None:
            accumulate = largest.configuration.accumulate
            items *= accumulate * largest.usable_records[0].facts.items_per_sample
        step = throughput.mapped(lambda value: items / value, unit="s") if items else None
        return ProjectedPoint(
            group_size=n,
            origin=origin,
            step_seconds=step,
            throughput=throughput,
            efficiency=efficiency,
        )


def noise_of(throughput: Estimate) -> float:
    """How far the logarithm of a measured throughput may be off; 0 without an interval."""
    return math.log(throughput.ends[1] / throughput.value)


def scaling_curves(
    rows: Sequence[Row], wanted: Callable[[Row], bool]
) -> tuple[list[ScalingCurve], list[str]]:
    """The curves of the `wanted` rows of a results folder or a published table, and a note on each
    that is left out.

    A curve with a row that is too noisy is left out whole, as all its predictions would rest on
    that row. Configurations that exchange no gradients, which others are compared with, are left
    out without a note. Without a curve, the first note says why.
    """
    if any(row.published and row.throughput is None for row in rows):
        return [], [NEEDS_THROUGHPUTS]
    alone = [name for name, traits in IMPLEMENTATIONS.items() if not traits.communicates]
    exchanging = [row for row in rows if wanted(row) and row.implementation not in alone]
    groups: dict[object, list[Row]] = {}
    for row in exchanging:
        if row.throughput is not None:
            settings = row.configuration
            key = settings.of_one_replica if settings else (row.work, row.series, row.batch_size)
            groups.setdefault(key, []).append(row)
    curves: list[ScalingCurve] = []
    notes: list[str] = []
    noisy: dict[Row, None] = {}  # several curves may rest on one
    for group in groups.values():
        # Group sizes that were measured on several numbers of nodes count on the fewest.
        by_nodes = sorted(group, key=lambda row: -len(row.replicas_by_node))
        fewest = {row.group_size: row for row in by_nodes}
        ordered = sorted(fewest.values(), key=lambda row: row.group_size)
        first = ordered[0]
        single = first.reference if first.speedup_reference == SINGLE else None
        if single and single.throughput and first.group_size > 1:
            ordered.insert(0, single)
        curve = ScalingCurve(rows=tuple(ordered))
        if first.configuration is not None and first.configuration.scaling == "strong":
            notes.append(
                f"{curve.label}: project needs weak scaling (a fixed batch per replica), and here "
                "the batch of the whole group is fixed; measure with --scaling weak"
            )
        elif doubtful := [row for row in (single, *ordered) if row and row.noisy_estimates]:
            noisy |= dict.fromkeys(doubtful)
        else:
            curves.append(curve)
    notes += noise_warnings(noisy, rows, "project")
    if rows and not exchanging:
        names = " and ".join(alone)
        notes.append(f"{names} exchange no gradients, so there is nothing to project")
    elif not groups:
        notes.append("no trial has a speed yet")
    return curves, notes
