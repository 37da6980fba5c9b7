"""A scaling curve as it was measured, and its rows at other group sizes by the law.

Rows come from a results folder or from a published table. All of them are weak scaling: with a
fixed batch in all, the batch of a replica changes along the curve, which no law here describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.law import (
    ACROSS_NODES,
    LARGEST_MULTIPLE,
    WITHIN_NODE,
    continued,
    crosses,
    refusal,
)
from dpbench.analysis.row import Row, noise_note
from dpbench.analysis.scaling import UNITY
from dpbench.errors import UsageError
from dpbench.specs import TrialSpec
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS, SINGLE

STRONG = (
    "project needs weak scaling (a fixed batch per replica), and here the batch of the whole group "
    "is fixed; measure with --scaling weak"
)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One implementation on one backend at a fixed batch per replica."""

    label: str
    """Such as "ddp/gloo, batch 32"."""
    item: str
    """Items that are counted: "images"; "" for a table of speedups."""
    rows: tuple[Row, ...]
    """Measured rows by ascending group size; each has a throughput, or a speedup."""
    single: Estimate | None = None
    """Throughput of `single`, which efficiencies are against; None if there is no such row."""
    items_per_replica: float | None = None
    """Items of one replica in one optimizer step; None if the batch size is not known."""
    trial: TrialSpec | None = None
    """The trial at group size 1; None for published numbers."""

    @property
    def unit(self) -> str:
        """Unit of its throughput."""
        return f"{self.item}/s" if self.item else "×"

    @property
    def group_sizes(self) -> tuple[int, ...]:
        return tuple(row.group_size for row in self.rows)

    @property
    def speeds(self) -> tuple[Estimate, ...]:
        """Throughputs, or speedups."""
        return tuple(speed for row in self.rows if (speed := measured_speed(row)) is not None)

    @property
    def base(self) -> Estimate:
        """Speed of one replica that scales linearly: `single`, or an equal share of the smallest
        measured group."""
        return self.single or self.speeds[0].scaled(1 / self.group_sizes[0], unit=self.unit)

    @property
    def reference(self) -> str:
        """Baseline of its efficiencies, in words."""
        return SINGLE if self.single else "the smallest measured group"

    def beyond_one_machine(self, n: int, per_node: int | None) -> str | None:
        """Why its backend cannot connect n replicas on nodes of this size; None if it can, or if
        the size is not known."""
        if self.trial is None or per_node is None or n <= per_node:
            return None
        if not BACKENDS[self.trial.backend].one_host:
            return None
        ranks = units.counted(per_node, "rank")
        return f"{self.trial.backend} works on one machine only, and a node has {ranks}"

    def measured_row(self, row: Row) -> ProjectedRow:
        """A measured group size."""
        speed = measured_speed(row)
        assert speed is not None, "a series has only rows with a speed"
        efficiency = row.efficiency
        if self.single is None and row.group_size == self.group_sizes[0]:
            efficiency = replace(UNITY, unit="of linear")
        elif efficiency is None:
            alone = replace(speed, low=None, high=None, basis="single value")
            efficiency = alone.scaled(1 / self.base.value / row.group_size, unit="of linear")
        found = ProjectedRow(group_size=row.group_size, kind="measured", efficiency=efficiency)
        return self.with_speed(found, speed)

    def predicted_row(
        self, n: int, kind: Origin, value: float, reach: tuple[float, float], sample_size: int
    ) -> ProjectedRow:
        """A group size with a predicted speed, whose logarithm may be off by `reach` (below,
        above); the efficiency has the noise of its base, too."""
        speed = banded(value, *reach, self.unit, sample_size=sample_size)
        linear, noise = n * self.base.value, noise_of(self.base)
        below, above = (math.hypot(side, noise) for side in reach)
        efficiency = banded(value / linear, below, above, "of linear", sample_size=sample_size)
        return self.with_speed(ProjectedRow(group_size=n, kind=kind, efficiency=efficiency), speed)

    def with_speed(self, row: ProjectedRow, speed: Estimate) -> ProjectedRow:
        """The row with a throughput, and the step time if the batch size is known."""
        step = None
        if self.items_per_replica is not None:
            items = self.items_per_replica * row.group_size
            step = speed.mapped(lambda rate: items / rate, unit="s")
        return replace(row, throughput=replace(speed, unit=self.unit), step_seconds=step)


def measured_speed(row: Row) -> Estimate | None:
    return row.throughput or row.speedup


def noise_of(speed: Estimate) -> float:
    """How far the logarithm of a measured speed may be off; 0 without an interval."""
    return math.log(speed.ends[1] / speed.value)


def sweep_series(
    rows: Sequence[Row],
    wanted: Callable[[Row], bool] = lambda _: True,
) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """The series of the `wanted` rows of a results folder, and a note on each curve that is left
    out.

    A curve with a row that is too noisy is left out whole, as all its predictions would rest on
    that row. Configurations that exchange no gradients, which others are compared with, are left
    out without a note. Raises UsageError if there is no series.
    """
    by_trial = {row.trial: row for row in rows if row.trial}
    groups: dict[TrialSpec, list[Row]] = {}
    for spec, row in by_trial.items():
        if row.throughput is None or not wanted(row):
            continue
        if IMPLEMENTATIONS[spec.implementation].communicates:
            groups.setdefault(spec.of_one_replica, []).append(row)
    series: list[Series] = []
    notes: list[str] = []
    noisy: list[Row] = []
    for spec, group in groups.items():
        label = f"{group[0].series}, batch {spec.batch_size}"
        if spec.scaling == "strong":
            notes.append(f"{label}: {STRONG}")
            continue
        # Group sizes that were measured on several numbers of hosts count on the fewest.
        fewest = {row.group_size: row for row in sorted(group, key=lambda row: -len(row.nodes))}
        ordered = sorted(fewest.values(), key=lambda row: row.group_size)
        single = by_trial.get(spec.baseline)
        known = [row for row in (single, *ordered) if row is not None]
        if too_noisy := [row for row in known if row.is_too_noisy]:
            noisy += [row for row in too_noisy if row not in noisy]
            continue
        items = ordered[0].records[0].items_per_sample
        series.append(
            Series(
                label=label,
                item=ordered[0].item,
                rows=tuple(ordered),
                single=None if single is None else single.throughput,
                items_per_replica=spec.batch_size * spec.accumulation_steps * items,
                trial=spec,
            )
        )
    if noisy:
        notes.append(noise_note(noisy, "project"))
    if not series:
        raise UsageError(notes[0] if notes else "no trial has a speed yet")
    return tuple(series), tuple(notes)


def published_series(path: Path) -> tuple[Series, ...]:
    """The series of a published table; raises UsageError for strong scaling."""
    from dpbench.analysis.published import from_csv

    groups: dict[tuple[str, int | None], list[Row]] = {}
    singles: dict[int | None, Estimate | None] = {}
    for row in from_csv(path):
        if row.duration is not None:
            raise UsageError(
                f"{path}: times of a fixed amount of work are strong scaling; {STRONG}"
            )
        if row.implementation == SINGLE:
            singles[row.batch_size] = row.throughput
        else:
            groups.setdefault((row.series, row.batch_size), []).append(row)
    return tuple(_published(group, singles.get(batch)) for (_, batch), group in groups.items())


def _published(group: Sequence[Row], single: Estimate | None) -> Series:
    ordered = sorted(group, key=lambda row: row.group_size)
    first = ordered[0]
    batch = first.batch_size
    if first.throughput is None and first.group_size > 1:
        # One replica has the speedup 1, whether or not the table has a row for it.
        ordered.insert(0, replace(first, group_size=1, values={"speedup": UNITY}))
    return Series(
        label=first.series if batch is None else f"{first.series}, batch {batch}",
        item="" if first.throughput is None else first.item,
        rows=tuple(ordered),
        single=single,
        items_per_replica=None if first.throughput is None else batch,
    )


def project_by_law(
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
    wanted = group_sizes or (*series.group_sizes, 2 * last, LARGEST_MULTIPLE * last)
    return tuple(_predicted(series, n, per_node) for n in sorted(set(wanted)))


def _predicted(series: Series, n: int, per_node: int | None) -> ProjectedRow:
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
    errors = ACROSS_NODES if across else WITHIN_NODE
    shift = errors.middle * predicted.scale
    parts = [(end - errors.middle) * predicted.scale for end in (errors.low, errors.high)]
    faster, slower = reach(parts, predicted.noise([*map(noise_of, speeds)]))
    kind: Origin = "interpolated"
    if n > sizes[-1]:
        kind = "next node" if across else "extrapolated"
    speed = n * math.exp(-predicted.log_seconds - shift)
    return series.predicted_row(n, kind, speed, (slower, faster), len(sizes))
