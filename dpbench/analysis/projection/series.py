"""A scaling curve as it was measured, and a law for larger group sizes.

Rows come from a results folder or from a published table. All of them are weak scaling: with a
fixed batch in all, the batch of a replica changes along the curve, which no law here describes.

Beyond the data, the logarithm of the step time goes on rising: in the first doubling by a third of
the mean rise per doubling that was measured, in each further one by half of that. A step that
became shorter is not expected to become still shorter. On published series this errs less than a
least-squares fit of latency and bandwidth terms and less than keeping the last efficiency
(`tools/law_errors.py`, docs/scaling.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dpbench import units
from dpbench.analysis.estimate import Estimate, single_value
from dpbench.analysis.rows import Row, noise_note
from dpbench.errors import UsageError
from dpbench.specs import Configuration
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS, SINGLE

LARGEST_MULTIPLE = 4
"""Largest multiple of the largest measured group size that is predicted."""
GOES_ON = 1 / 3
"""Part of the mean rise per doubling by which the first doubling beyond the data rises."""
DAMPING = 1 / 2
"""Rise of a doubling beyond the data, relative to the doubling before it."""
FLAT = 0.01
"""Rise per doubling that errors are scaled with besides the measured one: flat curves err, too."""
STRONG = (
    "project needs weak scaling (a fixed batch per replica), and here the batch of the whole group "
    "is fixed; measure with --scaling weak"
)
Origin = Literal["measured", "extrapolated", "next node", "projected", "refused"]
"""Where the numbers of a row come from; the strongest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectedRow:
    """A group size, and what one step costs there; a refused row has a reason and no numbers."""

    group_size: int
    kind: Origin
    reason: str | None = None
    """Why there are no numbers."""
    step_seconds: Estimate | None = None
    """None also if the batch size is not known."""
    throughput: Estimate | None = None
    efficiency: Estimate | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One implementation on one backend at a fixed batch per replica."""

    rows: tuple[Row, ...]
    """Measured rows by ascending group size, each with a throughput."""
    single: Estimate | None = None
    """Throughput of `single`, which efficiencies are against; None if there is no such row."""
    items_per_replica: float | None = None
    """Items of one replica in one optimizer step; None if the batch size is not known."""

    @property
    def label(self) -> str:
        """Such as "ddp/gloo, batch 32"."""
        first = self.rows[0]
        return first.series + ("" if first.batch_size is None else f", batch {first.batch_size}")

    @property
    def configuration(self) -> Configuration | None:
        """The configuration at group size 1; None for published numbers."""
        first = self.rows[0].configuration
        return None if first is None else first.of_one_replica

    @property
    def group_sizes(self) -> tuple[int, ...]:
        return tuple(row.group_size for row in self.rows)

    @property
    def speeds(self) -> tuple[Estimate, ...]:
        """The throughputs of all replicas."""
        return tuple(row.throughput for row in self.rows if row.throughput is not None)

    @property
    def base(self) -> Estimate:
        """Throughput of one replica that scales linearly: `single`, or an equal share of the
        smallest measured group."""
        first = self.speeds[0]
        return self.single or first.scaled(1 / self.group_sizes[0], unit=first.unit)

    @property
    def reference(self) -> str:
        """Baseline of its efficiencies, in words."""
        return SINGLE if self.single else "the smallest measured group"

    def beyond_one_machine(self, n: int, per_node: int | None) -> str | None:
        """Why its backend cannot connect n replicas on nodes of this size; None if it can, or if
        the size is not known."""
        if self.configuration is None or per_node is None or n <= per_node:
            return None
        backend = self.configuration.backend
        if not BACKENDS[backend].one_host:
            return None
        ranks = units.counted(per_node, "rank")
        return f"{backend} works on one machine only, and a node has {ranks}"

    def measured_row(self, n: int) -> ProjectedRow:
        """The row of a measured group size."""
        place = self.group_sizes.index(n)
        speed, efficiency = self.speeds[place], self.rows[place].efficiency
        if efficiency is None:  # without single and group size 1 it has no speedup
            efficiency = single_value(speed.value / (n * self.base.value), "of linear")
        return self._row(n, "measured", speed, efficiency)

    def predicted_row(
        self, n: int, kind: Origin, value: float, errors: Sequence[float], sample_size: int
    ) -> ProjectedRow:
        """A group size with a predicted throughput; the efficiency has the noise of its base, too.

        Each of the independent `errors` is how much longer than predicted, on a logarithmic scale,
        a step may take, or shorter if it is below 0.
        """

        def banded(value: float, unit: str, *more: float) -> Estimate:
            low, high = (
                value * math.exp(sign * math.hypot(*(max(0.0, -sign * e) for e in errors), *more))
                for sign in (-1, 1)
            )
            return Estimate(
                value=value, low=low, high=high, unit=unit, sample_size=sample_size, basis="model"
            )

        share = value / (n * self.base.value)
        efficiency = banded(share, "of linear", noise_of(self.base))
        return self._row(n, kind, banded(value, self.base.unit), efficiency)

    def _row(self, n: int, kind: Origin, speed: Estimate, efficiency: Estimate) -> ProjectedRow:
        """The row with its step time, if the batch size is known."""
        items = (self.items_per_replica or 0) * n
        step = speed.mapped(lambda rate: items / rate, unit="s") if items else None
        return ProjectedRow(
            group_size=n, kind=kind, throughput=speed, efficiency=efficiency, step_seconds=step
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """The rows of one series at other group sizes, and what they rest on."""

    series: Series
    rows: tuple[ProjectedRow, ...]
    network: str | None = None
    """The network that its steps are simulated on; None for a law."""
    assumptions: tuple[str, ...] = ()


def noise_of(speed: Estimate) -> float:
    """How far the logarithm of a measured speed may be off; 0 without an interval."""
    return math.log(speed.ends[1] / speed.value)


def series_of(
    rows: Sequence[Row], wanted: Callable[[Row], bool]
) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """The series of the `wanted` rows of a results folder or a published table, and a note on each
    curve that is left out.

    A curve with a row that is too noisy is left out whole, as all its predictions would rest on
    that row. Configurations that exchange no gradients, which others are compared with, are left
    out without a note. Raises UsageError if there is no series, or a table has no throughputs.
    """
    singles = {
        row.configuration or row.batch_size: row for row in rows if row.implementation == SINGLE
    }
    groups: dict[object, list[Row]] = {}
    for row in rows:
        if row.configuration is None and row.throughput is None:
            raise UsageError(
                "expected a throughput at a fixed batch per replica (images_per_second or "
                "seconds_per_step), got times of a fixed amount of work or speedups"
            )
        traits = IMPLEMENTATIONS.get(row.implementation)
        communicates = row.implementation != SINGLE if traits is None else traits.communicates
        if row.throughput is not None and communicates and wanted(row):
            one = row.configuration
            key = one.of_one_replica if one else (row.series, row.batch_size)
            groups.setdefault(key, []).append(row)
    series: list[Series] = []
    notes: list[str] = []
    noisy: dict[str, Row] = {}
    for group in groups.values():
        # Group sizes that were measured on several numbers of nodes count on the fewest.
        by_nodes = sorted(group, key=lambda row: -len(row.replicas_by_node))
        fewest = {row.group_size: row for row in by_nodes}
        ordered = sorted(fewest.values(), key=lambda row: row.group_size)
        spec, items = ordered[0].configuration, ordered[0].batch_size
        single = singles.get(spec.single if spec else items)
        if spec is not None:
            per_sample = ordered[0].records[0].items_per_sample
            items = spec.batch_size * spec.accumulation_steps * per_sample
        found = Series(
            rows=tuple(ordered),
            single=None if single is None else single.throughput,
            items_per_replica=items,
        )
        too_noisy = [row for row in (single, *ordered) if row is not None and row.is_too_noisy]
        if spec is not None and spec.scaling == "strong":
            notes.append(f"{found.label}: {STRONG}")
        elif too_noisy:
            noisy |= {row.label: row for row in too_noisy}
        else:
            series.append(found)
    if noisy:
        notes.append(noise_note(noisy.values(), "project"))
    if not series:
        raise UsageError(notes[0] if notes else "no trial has a speed yet")
    return tuple(series), tuple(notes)


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
    """How many of the `predictions` lay in a band from all other series."""
    predictions: int


# `python -m tools.law_errors` computes both.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The logarithm of a step time: the last measured one, and a part of the measured rise."""

    log_seconds: float
    part: float
    """Rise beyond the last measured group size ÷ the whole measured rise."""
    scale: float
    """Scale of its error: the steeper the curve and the farther away, the larger."""

    def noise(self, first: float, last: float) -> float:
        """How far it may be off because the logarithms of the first and last measured step may be,
        independently."""
        return math.hypot(self.part * first, (1 + self.part) * last)


def continued(sizes: Sequence[int], seconds: Sequence[float], group_size: int) -> Prediction:
    """The step time at a larger group size than the two or more measured ones, which ascend;
    `seconds` may have any unit."""
    first, last = math.log(seconds[0]), math.log(seconds[-1])
    measured, beyond = math.log2(sizes[-1] / sizes[0]), math.log2(group_size / sizes[-1])
    part = 0.0
    if last > first:
        part = GOES_ON * (1 - DAMPING**beyond) / (1 - DAMPING) / measured
    rise = max(0.0, last - first)
    return Prediction(
        log_seconds=last + part * rise,
        part=part,
        scale=error_scale(rise / measured, beyond),
    )


def error_scale(rise: float, doublings: float) -> float:
    """Scale of the error of a logarithm so many doublings away from the data, where it rises by
    `rise` per doubling: on published series it grows with the root of both."""
    return math.sqrt((FLAT + rise) * doublings)


def crosses(sizes: Sequence[int], n: int, per_node: int | None) -> bool:
    """Whether n replicas need a second node, and all measured groups fit one."""
    return per_node is not None and sizes[-1] <= per_node < n


def project_by_law(
    series: Series, group_sizes: Sequence[int] | None, per_node: int | None = None
) -> Projection:
    """A row for each group size, ascending; None for the measured ones and 2 and 4 × the largest.

    `per_node` is how many replicas a node has; None if that is not known, which no row then
    crosses. Raises UsageError for a series of a single group size.
    """
    sizes = series.group_sizes
    if len(sizes) < 2:
        raise UsageError(
            f"{series.label}: a projection needs at least two group sizes, got {sizes[0]}; measure "
            "more, for example with dpbench sweep --group-sizes 1,2,4"
        )
    speeds, rows = series.speeds, list[ProjectedRow]()
    seconds = [size / speed.value for size, speed in zip(sizes, speeds, strict=True)]
    for n in sorted({*(group_sizes or (*sizes, 2 * sizes[-1], LARGEST_MULTIPLE * sizes[-1]))}):
        reason = series.beyond_one_machine(n, per_node)
        if n in sizes:
            rows.append(series.measured_row(n))
            continue
        if n < sizes[-1]:
            reason = f"below the largest measured group size ({sizes[-1]}); measure it"
        elif n > LARGEST_MULTIPLE * sizes[-1]:
            reason = (
                f"more than {LARGEST_MULTIPLE} × the largest measured group size ({sizes[-1]}); "
                "simulate larger groups with --topology"
            )
        if reason is not None:
            rows.append(ProjectedRow(group_size=n, kind="refused", reason=reason))
            continue
        predicted, across = continued(sizes, seconds, n), crosses(sizes, n, per_node)
        band = ACROSS_NODES if across else WITHIN_NODE
        errors = [(end - band.middle) * predicted.scale for end in (band.low, band.high)]
        noise = predicted.noise(noise_of(speeds[0]), noise_of(speeds[-1]))
        speed = n * math.exp(-predicted.log_seconds - band.middle * predicted.scale)
        kind: Origin = "next node" if across else "extrapolated"
        errors += [noise, -noise]
        rows.append(series.predicted_row(n, kind, speed, errors, len(sizes)))
    return Projection(series=series, rows=tuple(rows))
