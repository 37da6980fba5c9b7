"""The changes that `dpbench what-if` knows, and the effect of each alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dpbench import units
from dpbench.analysis.communication.collective_cost import CollectiveCost
from dpbench.analysis.estimate import Estimate, inverse
from dpbench.analysis.projection.project import Simulated, project, simulate_at
from dpbench.analysis.projection.series import Series
from dpbench.analysis.projection.simulation import into_buckets
from dpbench.analysis.projection.step_model import Overlap, step_band
from dpbench.analysis.provenance import PredictedRow
from dpbench.errors import UnknownName, UsageError
from dpbench.units import DTYPE_BYTES, MEBI

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
OVERLAPS: dict[Overlap, str] = {
    "perfect": "communication hidden as soon as the first bucket is ready, at no cost",
    "none": "all communication after the backward pass, which then does not slow it down",
}
LARGEST = 1e6
"""Largest factor and size; anything beyond fits no machine, and overflows."""
DEFAULTS = (
    "bandwidth=2",
    "latency=0.5",
    "gradients=bf16",
    "accumulate=4",
    "bucket-cap-mb=5",
    "bucket-cap-mb=100",
    "stragglers=none",
    "overlap=perfect",
    "overlap=none",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change: as typed, in words, and its effect on a series."""

    text: str
    words: str
    apply: Callable[[Series], Series]


def parse_change(text: str) -> Change:
    """Parse "bandwidth=2"; raises UsageError for an unknown name or value."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise UsageError(
            f"--change {text!r}: expected name=value, as in bandwidth=2; names: "
            f"{', '.join(_CHANGES)}"
        )
    if name not in _CHANGES:
        raise UnknownName("name in --change:", name, _CHANGES)
    words, apply = _CHANGES[name](value)
    return Change(text=f"{name}={value}", words=words, apply=apply)


_Parsed = tuple[str, Callable[[Series], Series]]


def _of_network(name: str, value: str) -> _Parsed:
    factor = _positive(name, value)
    words = f"{factor:g} × the {name}"
    return words, lambda one: _on_network(one, one.network.scaled(**{name: factor}))


def _on_network(one: Series, network: CollectiveCost) -> Series:
    return replace(one, network=network, model=replace(one.model, network=network))


def _gradients(value: str) -> _Parsed:
    value = value.lower()
    if value not in ELEMENT_BYTES:
        raise UnknownName("value for --change gradients:", value, ELEMENT_BYTES)
    words = f"gradients sent as {value}; converting them costs nothing"

    def apply(one: Series) -> Series:
        sizes = {DTYPE_BYTES.get(d) for trace in one.inputs.traces for d in trace.gradient_dtypes}
        if len(sizes) != 1 or (size := sizes.pop()) is None:
            raise UsageError(f"--change gradients={value}: gradients are not all of one known size")
        part = ELEMENT_BYTES[value] / size
        return _on_network(one, replace(one.network, wire_share=part))

    return words, apply


def _accumulate(value: str) -> _Parsed:
    steps = _positive("accumulate", value)
    if steps != int(steps):
        raise UsageError(f"--change accumulate={value}: expected a whole number of micro-steps")
    words = f"one synchronization in {units.counted(int(steps), 'micro-step')}"

    def apply(one: Series) -> Series:
        return replace(one, model=replace(one.model, accumulation_steps=int(steps)))

    return words, apply


def _bucket_cap(value: str) -> _Parsed:
    cap = _positive("bucket-cap-mb", value)
    words = f"buckets of up to {cap:g} MiB, the first one too"

    def apply(one: Series) -> Series:
        buckets = into_buckets(one.model.trace, cap_bytes=cap * MEBI)
        return replace(one, model=replace(one.model, buckets=buckets))

    return words, apply


def _stragglers(value: str) -> _Parsed:
    if value != "none":
        raise UsageError(f"--change stragglers={value}: expected stragglers=none")
    words = "all replicas take equally long"
    return words, lambda one: replace(one, model=one.model.without_stragglers())


def _overlap(value: str) -> _Parsed:
    overlap = next((known for known in OVERLAPS if known == value), None)
    if overlap is None:
        raise UnknownName("value for --change overlap:", value, OVERLAPS)
    return OVERLAPS[overlap], lambda one: replace(one, model=replace(one.model, overlap=overlap))


def _positive(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 1 / LARGEST <= number <= LARGEST:
        raise UsageError(
            f"--change {name}={value}: expected a number from {1 / LARGEST:g} to {LARGEST:,.0f}, "
            f"as in {name}=2; for several changes repeat --change"
        )
    return number


_CHANGES: dict[str, Callable[[str], _Parsed]] = {
    "bandwidth": partial(_of_network, "bandwidth"),
    "latency": partial(_of_network, "latency"),
    "gradients": _gradients,
    "accumulate": _accumulate,
    "bucket-cap-mb": _bucket_cap,
    "stragglers": _stragglers,
    "overlap": _overlap,
}


AS_IS = "as is"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedStep:
    """Predicted step with a change."""

    change: str
    """The change as typed; `AS_IS` for none."""
    words: str
    step_seconds: Estimate
    throughput: Estimate
    ratio: Estimate
    """Ratio of throughputs to the unchanged step; 1 by definition for no change."""
    exposed_seconds: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf(PredictedRow):
    """All changes at one group size."""

    outcomes: tuple[ChangedStep, ...] = ()
    """Outcomes, the unchanged step first."""
    simulation_error: float | None = None
    """Simulated ÷ measured unchanged step - 1; None if not measured."""


def what_if(
    series: Series, group_sizes: Sequence[int], changes: Sequence[Change]
) -> tuple[WhatIf, ...]:
    """Each change alone against the unchanged step, at each group size in rising order."""
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
) -> ChangedStep:
    items = series.items_per_replica * n
    return ChangedStep(
        change=change,
        words=words,
        step_seconds=simulated.step_seconds,
        throughput=inverse(simulated.step_seconds).scaled(items, unit=f"{series.item}/s"),
        ratio=ratio,
        exposed_seconds=simulated.exposed_seconds,
    )


def _ratio(before: Simulated, after: Simulated, per_item: float) -> Estimate:
    """Ratio of throughputs; both sides share their inputs, and so most of their spread.

    `per_item`: items of a step before ÷ after. The model's own error is taken to be common to
    both sides.
    """
    pairs = zip(before.steps, after.steps, strict=True)
    ratios = [b.seconds / a.seconds / per_item for b, a in pairs]
    band = step_band(ratios, 0.0, sample_size=after.step_seconds.sample_size)
    return replace(band, unit="×")
