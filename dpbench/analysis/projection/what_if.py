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
    found = []
    for n in sorted(set(group_sizes)):
        refusal = series.refusal(n)
        if refusal is not None:
            found.append(WhatIf(group_size=n, kind="refused", reason=refusal))
            continue
        outcomes = [_outcome(series, series, n, AS_IS, "")]
        outcomes += [_outcome(series, c.apply(series), n, c.text, c.words) for c in changes]
        found.append(
            WhatIf(
                group_size=n,
                kind=series.simulated_kind(n),
                outcomes=tuple(outcomes),
                simulation_error=project(series, [n])[0].simulation_error,
            )
        )
    return tuple(found)


def _outcome(series: Series, changed: Series, n: int, change: str, words: str) -> Outcome:
    simulated = simulate_at(changed, n)
    items = changed.items_per_replica * n
    return Outcome(
        change=change,
        words=words,
        step_seconds=simulated.step_seconds,
        throughput=inverse(simulated.step_seconds).scaled(items, unit=f"{series.item}/s"),
        ratio=_ratio(series, changed, n, simulated),
        exposed_seconds=simulated.exposed_seconds,
    )


def _ratio(series: Series, changed: Series, n: int, simulated: Simulated) -> Estimate:
    """Of throughputs; both sides share their inputs, and so most of their spread.

    The model's own error is taken to be common to both sides.
    """
    if series is changed:
        return Estimate(value=1.0, unit="×", sample_size=1, basis="baseline")
    cases = series.spread.cases()
    before = series.model.mean_steps(n, cases)
    after = changed.model.mean_steps(n, cases)
    per_item = series.items_per_replica / changed.items_per_replica
    ratios = [b.seconds / a.seconds / per_item for b, a in zip(before, after, strict=True)]
    band = step_band(ratios, 0.0, sample_size=simulated.step_seconds.sample_size)
    return replace(band, unit="×")
