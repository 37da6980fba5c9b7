"""What a change of the network, the gradients or the steps would bring, each change alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.changes import Change
from dpbench.analysis.projection.project import Simulated, project, simulate_at
from dpbench.analysis.projection.resources import inverse
from dpbench.analysis.projection.series import Series
from dpbench.analysis.projection.spread import step_band
from dpbench.analysis.provenance import Kind

AS_IS = "as is"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a step would be with a change."""

    change: str
    """As it is typed; `AS_IS` for none."""
    words: str
    step_seconds: Estimate
    throughput: Estimate
    ratio: Estimate
    """Of throughputs, against the step as it is; 1 by definition for none."""
    exposed_seconds: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """All changes at one group size; a refused one has a reason in place of them."""

    group_size: int
    kind: Kind
    outcomes: tuple[Outcome, ...] = ()
    """As is first."""
    simulation_error: float | None = None
    """Simulated ÷ measured step as it is - 1; None where it was not measured."""
    reason: str | None = None


def what_if(
    series: Series, group_sizes: Sequence[int], changes: Sequence[Change]
) -> tuple[WhatIf, ...]:
    """Each change alone against the step as it is, at each group size in rising order."""
    return tuple(_at(series, n, changes) for n in sorted(set(group_sizes)))


def _at(series: Series, n: int, changes: Sequence[Change]) -> WhatIf:
    if (refusal := series.refusal(n)) is not None:
        return WhatIf(group_size=n, kind="refused", reason=refusal)
    [row] = project(series, [n])
    as_is = row.simulated
    assert as_is is not None, "refusal() lets no other group size through"
    same = Estimate(value=1.0, unit="×", sample_size=1, basis="baseline")
    outcomes = [_outcome(series, n, as_is, same, AS_IS, "")]
    for change in changes:
        changed = change.apply(series)
        simulated = simulate_at(changed, n)
        per_item = series.items_per_replica / changed.items_per_replica
        ratio = _ratio(as_is, simulated, per_item)
        outcomes.append(_outcome(changed, n, simulated, ratio, change.text, change.words))
    return WhatIf(
        group_size=n,
        kind=as_is.kind,
        outcomes=tuple(outcomes),
        simulation_error=row.simulation_error,
    )


def _outcome(
    series: Series, n: int, simulated: Simulated, ratio: Estimate, change: str, words: str
) -> Outcome:
    items = series.items_per_replica * n
    return Outcome(
        change=change,
        words=words,
        step_seconds=simulated.step_seconds,
        throughput=inverse(simulated.step_seconds).scaled(items, unit=f"{series.item}/s"),
        ratio=ratio,
        exposed_seconds=simulated.exposed_seconds,
    )


def _ratio(before: Simulated, after: Simulated, per_item: float) -> Estimate:
    """Of throughputs; both sides share their inputs, and so most of their spread.

    `per_item`: items of a step before ÷ after. The model's own error is taken to be common to
    both sides.
    """
    pairs = zip(before.steps, after.steps, strict=True)
    ratios = [b.seconds / a.seconds / per_item for b, a in pairs]
    band = step_band(ratios, 0.0, sample_size=after.step_seconds.sample_size)
    return replace(band, unit="×")
