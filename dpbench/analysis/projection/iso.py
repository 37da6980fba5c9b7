"""Iso-efficiency: the smallest batch per replica that keeps an efficiency, at any group size.

More work per step pays for the same communication. A step is affine in its batch: every part of the
trace but the optimizer is interpolated by c0 + c1 b through the batch sizes that were traced, with
c0, c1 >= 0, and the optimizer's part is constant. Efficiency grows with the batch, so that the
smallest one is found by bisection on the simulation (Grama, Gupta and Kumar, "Isoefficiency:
measuring the scalability of parallel algorithms and architectures", 1993).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.optimize import nnls

from dpbench import units
from dpbench.analysis.estimate import Floats
from dpbench.analysis.projection.project import simulate_at
from dpbench.analysis.projection.series import Series
from dpbench.analysis.projection.simulation import StepTrace, caps_bytes, into_buckets
from dpbench.analysis.provenance import FARTHEST, PredictedRow, Provenance, weaker
from dpbench.errors import UsageError

ROUNDING = 1e-9
"""Tolerance for rounding: an efficiency that is reached exactly must not need one sample more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IsoRow(PredictedRow):
    """The batch at one group size, in whole samples, rounded up.

    There is no batch, but a reason, if it is refused or no batch reaches the efficiency.
    """

    batch_size: int | None = None
    """Batch size per replica and micro-step."""
    low: int | None = None
    high: int | None = None
    """Batch size at which the lower end of the efficiency's band crosses; None if it never does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """The same implementation and backend at several batch sizes."""

    members: tuple[Series, ...]
    """Members by rising batch size, at least two."""

    @property
    def label(self) -> str:
        return self.members[0].label.rpartition(",")[0]

    @property
    def network(self) -> str:
        """Name of the network."""
        return self.members[-1].network.name

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(one.trial.batch_size for one in self.members)

    @property
    def largest_batch(self) -> int:
        """Largest batch size for which the linear model is believed."""
        return FARTHEST * self.batch_sizes[-1]

    def at(self, batch_size: int) -> list[tuple[float, Series]]:
        """The members next to a batch, each with its trace, and their weights, which add up to 1.

        Stragglers and contention are those of the members; between two of them values are
        interpolated along the logarithm of the batch, so that nothing jumps.
        """
        trace = affine_trace(
            [one.model.trace for one in self.members], self.batch_sizes, batch_size
        )
        cap, first_cap = caps_bytes(self.members[0].cap_mb)
        buckets = into_buckets(trace, cap_bytes=cap, first_cap_bytes=first_cap)
        return [
            (weight, replace(one, model=replace(one.model, trace=trace, buckets=buckets)))
            for weight, one in zip(self._weights(batch_size), self.members, strict=True)
            if weight > 0
        ]

    def _weights(self, batch_size: int) -> Floats:
        logs = np.log(self.batch_sizes)
        corners = np.eye(len(self.members))
        return np.array([np.interp(np.log(batch_size), logs, corner) for corner in corners])


def families(series: Sequence[Series]) -> tuple[Family, ...]:
    """Families of series; raises UsageError if one has a single batch size."""
    groups: dict[object, list[Series]] = {}
    for one in series:
        groups.setdefault(replace(one.trial, batch_size=1), []).append(one)
    for group in groups.values():
        if len(group) < 2:
            trial = group[0].trial
            raise UsageError(
                f"{group[0].label}: one batch size does not tell how a step grows with it; measure "
                f"another: dpbench sweep --implementations {trial.implementation} --backends "
                f"{trial.backend} --arch {trial.workload.architecture} --batch-sizes "
                f"{trial.batch_size},{4 * trial.batch_size}"
            )
    return tuple(
        Family(members=tuple(sorted(group, key=lambda one: one.trial.batch_size)))
        for group in groups.values()
    )


def iso_batches(
    family: Family, group_sizes: Sequence[int], efficiency: float
) -> tuple[IsoRow, ...]:
    """A row for each group size; `efficiency` as a fraction."""
    return tuple(_row(family, n, efficiency) for n in sorted(set(group_sizes)))


def affine_trace(
    traces: Sequence[StepTrace], batch_sizes: Sequence[int], batch_size: float
) -> StepTrace:
    """The trace of a batch size, on the line through those of others.

    Gradients are matched by their place in the order in which they get ready. Raises UsageError
    if the traces have different gradients.
    """
    if len({(len(t.gradient_bytes), t.total_bytes) for t in traces}) > 1:
        raise UsageError("the traces of different batch sizes have different gradients")
    parts = np.array(
        [[t.forward_seconds, t.backward_end_seconds, *t.ready_seconds] for t in traces]
    )
    forward, backward_end, *ready = _on_lines(parts, np.array(batch_sizes, float), batch_size)
    ordered = np.minimum(np.maximum.accumulate(ready), backward_end)
    return replace(
        traces[-1],
        forward_seconds=forward,
        backward_seconds=max(0.0, backward_end - forward),
        optimizer_seconds=float(np.mean([t.optimizer_seconds for t in traces])),
        ready_seconds=tuple(ordered.tolist()),
        sample_size=sum(t.sample_size for t in traces),
    )


def _on_lines(parts: Floats, batch_sizes: Floats, at: float) -> list[float]:
    """Values c0 + c1 b of every column, by non-negative least squares of relative residuals."""
    values = []
    for column in parts.T:
        if not column.all():  # a part that takes no time with some batch takes none
            values.append(0.0)
            continue
        weights = 1 / column
        rows = np.column_stack([weights, batch_sizes * weights])
        constant, slope = nnls(rows, column * weights)[0]
        values.append(float(constant + slope * at))
    return values


def _row(family: Family, group_size: int, efficiency: float) -> IsoRow:
    refusal = family.members[0].refusal(group_size)
    if refusal is not None:
        return IsoRow(group_size=group_size, kind="refused", reason=refusal)

    def reached_by(end: Callable[[int], float]) -> int | None:
        return _smallest(lambda b: end(b) >= efficiency - ROUNDING, family.largest_batch)

    @cache
    def at(batch: int) -> tuple[float, float, float]:
        value = low = high = 0.0
        for weight, one in family.at(batch):
            found = simulate_at(one, group_size).efficiency
            value += weight * found.value
            low, high = low + weight * found.ends[0], high + weight * found.ends[1]
        return value, low, high

    batch = reached_by(lambda b: at(b)[0])
    if batch is None:
        value, _, high = at(family.largest_batch)
        best = f"{units.percent(value, 3)} (at best {units.percent(high, 3)})"
        return IsoRow(
            group_size=group_size,
            kind=weaker(family.members[-1].simulated_kind(group_size), "extrapolated"),
            reason=(
                f"not with any batch up to {family.largest_batch:,}, which reaches {best}; "
                f"steps are believed up to {FARTHEST} × the largest batch that was traced"
            ),
        )
    return IsoRow(
        group_size=group_size,
        kind=weaker(family.members[0].simulated_kind(group_size), _kind_of(family, batch)),
        batch_size=batch,
        low=reached_by(lambda b: at(b)[2]),
        high=reached_by(lambda b: at(b)[1]),
    )


def _smallest(holds: Callable[[int], bool], largest: int) -> int | None:
    """The smallest number, from 1, from which a condition holds; None if it does not hold at
    `largest`."""
    if not holds(largest):
        return None
    low, high = 0, largest  # it does not hold at `low`, and holds at `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _kind_of(family: Family, batch_size: int) -> Provenance:
    sizes = family.batch_sizes
    return "interpolated" if sizes[0] <= batch_size <= sizes[-1] else "extrapolated"
