"""Two questions to a simulation: what a change would give, and which batch keeps an efficiency."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.row import CONFIDENCE, ProjectedRow, banded, reach
from dpbench.analysis.projection.simulation import Simulation
from dpbench.errors import UnknownName, UsageError

ROUNDING = 1e-9
"""An efficiency that is reached exactly must not need one sample more."""
LARGEST = 1e6


Change = Callable[[Simulation], Simulation]


def parse_change(text: str) -> Change:
    """A change from NAME=NUMBER; raises UsageError for anything else."""
    name, _, value = text.partition("=")
    if name not in CHANGES:
        raise UnknownName("name in --change:", name, CHANGES)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    is_usable = 1 / LARGEST <= number <= LARGEST
    if name == "accumulate" and not (is_usable and number.is_integer()):
        raise UsageError(f"--change {text}: expected a whole number of micro-steps, as in {name}=2")
    if not is_usable:
        raise UsageError(f"--change {text}: expected a number above 0, as in {name}=2")
    return lambda simulation: CHANGES[name](simulation, number)


def _network(simulation: Simulation, *, latency: float = 1.0, bandwidth: float = 1.0) -> Simulation:
    network = simulation.network
    changed = replace(
        network,
        latency_factor=network.latency_factor * latency,
        bandwidth_factor=network.bandwidth_factor * bandwidth,
    )
    return replace(simulation, network=changed)


def _accumulate(simulation: Simulation, steps: float) -> Simulation:
    items = simulation.series.items_per_replica
    assert items is not None, "sweeps have a batch size"
    more = items * steps / simulation.accumulation_steps
    series = replace(simulation.series, items_per_replica=more)
    return replace(simulation, series=series, accumulation_steps=int(steps))


CHANGES: dict[str, Callable[[Simulation, float], Simulation]] = {
    "bandwidth": lambda one, x: _network(one, bandwidth=x),
    "latency": lambda one, x: _network(one, latency=x),
    "compute": lambda one, x: replace(one, compute_factor=one.compute_factor / x),
    "gradient-bytes": lambda one, x: replace(one, wire_share=one.wire_share * x),
    "bucket-cap-mb": lambda one, x: replace(one, cap_mb=x),
    "accumulate": _accumulate,
}
"""Changes by name: a number multiplies the bandwidth, the latency, the speed of computing or the
bytes of gradients, or it is the size of all buckets or the micro-steps in a synchronization."""


def changed_rows(
    simulation: Simulation, group_sizes: Sequence[int], changes: Mapping[str, Change]
) -> tuple[ProjectedRow, ...]:
    """The simulated step as it is and with each change alone, at each group size.

    `changes` has each one by its text, such as "bandwidth=2".
    """
    rows = []
    for n in sorted(set(group_sizes)):
        now = simulation.row(n)
        rows.append(now)
        if now.kind == "refused":
            continue
        for text, change in changes.items():
            changed = change(simulation)
            ratio = _ratio(simulation, changed, n)
            rows.append(replace(changed.row(n), change=text, ratio=ratio))
    return tuple(rows)


def _ratio(before: Simulation, after: Simulation, n: int) -> Estimate:
    """Ratio of throughputs. Both sides share their inputs, and so most of their errors; that of the
    model is taken to be common to both."""

    def at(case: dict[str, float]) -> float:
        items = (after.series.items_per_replica or 1) / (before.series.items_per_replica or 1)
        return items * before.step_seconds(n, case) / after.step_seconds(n, case)

    value = at({})
    below, above = reach([math.log(at(case) / value) for case in before.cases(n)])
    return banded(value, below, above, "×", sample_size=before.traces)


def smallest_batches(
    members: Sequence[Simulation], group_sizes: Sequence[int], efficiency: float
) -> tuple[ProjectedRow, ...]:
    """The smallest batch per replica that keeps an efficiency, at each group size.

    Only batch sizes between the measured ones are considered: between two of them a step is on the
    line through both.

    Args:
        members: the same implementation and backend at two batch sizes or more.
        efficiency: as a fraction.

    Raises:
        UsageError: fewer than two batch sizes were measured.
    """
    ordered = sorted(members, key=lambda one: one.batch_size)
    if len(ordered) < 2:
        raise UsageError(
            f"{ordered[0].series.label}: --efficiency needs two batch sizes or more; measure them "
            "with dpbench sweep --batch-sizes 16,64,256"
        )
    return tuple(_batch_row(ordered, n, efficiency) for n in sorted(set(group_sizes)))


def _batch_row(members: Sequence[Simulation], n: int, goal: float) -> ProjectedRow:
    first, last = members[0], members[-1]
    if (reason := first.refusal(n)) is not None:
        return ProjectedRow(group_size=n, kind="refused", reason=reason)

    def smallest(read: Callable[[Estimate], float]) -> int | None:
        """By bisection, as efficiency grows with the batch; None if the largest one falls short."""
        low, high = first.batch_size, last.batch_size
        if read(_efficiency(members, high, n)) < goal - ROUNDING:
            return None
        while low < high:
            middle = (low + high) // 2
            if read(_efficiency(members, middle, n)) >= goal - ROUNDING:
                high = middle
            else:
                low = middle + 1
        return high

    batch = smallest(lambda found: found.value)
    if batch is None:
        best = _efficiency(members, last.batch_size, n)
        return ProjectedRow(
            group_size=n,
            kind="refused",
            reason=(
                f"the largest measured batch size ({last.batch_size:,}) reaches only "
                f"{units.percent(best.value, 3)} efficiency; measure larger ones"
            ),
        )
    low, high = smallest(lambda found: found.ends[1]), smallest(lambda found: found.ends[0])
    ends = (None, None) if low is None or high is None else (float(low), float(high))
    return ProjectedRow(
        group_size=n,
        kind=first.kind(n),
        efficiency=_efficiency(members, batch, n),
        batch_size=Estimate(
            value=float(batch),
            low=ends[0],
            high=ends[1],
            unit="samples",
            sample_size=first.traces,
            basis="model",
            confidence=CONFIDENCE,
        ),
    )


def _efficiency(members: Sequence[Simulation], batch: int, n: int) -> Estimate:
    """Efficiency at a batch size, from the two measured ones around it."""
    for smaller, larger in pairwise(members):
        if batch <= larger.batch_size:
            weight = (batch - smaller.batch_size) / (larger.batch_size - smaller.batch_size)
            trace = smaller.trace.between(larger.trace, weight)
            first, second = (
                replace(one, trace=trace).row(n).efficiency for one in (smaller, larger)
            )
            assert first is not None, "refused group sizes are not simulated"
            assert second is not None, "refused group sizes are not simulated"
            low, high = (
                (1 - weight) * one + weight * other
                for one, other in zip(first.ends, second.ends, strict=True)
            )
            value = (1 - weight) * first.value + weight * second.value
            return replace(first, value=value, low=low, high=high)
    raise ValueError(f"batch size {batch} is larger than all measured ones")
