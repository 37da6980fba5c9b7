"""The changes that `dpbench what-if` knows: how each is typed, and what it does to a series."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpbench import units
from dpbench.analysis.projection.series import Series
from dpbench.analysis.projection.step_model import Overlap
from dpbench.analysis.simulation.buckets import MEBI, into_buckets
from dpbench.errors import UnknownName, UsageError

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
OVERLAPS: tuple[Overlap, ...] = ("perfect", "none")
LARGEST = 1e6
"""Factors and sizes beyond belong to no machine, and overflow."""
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
    """One change, as it is typed, in words, and what it does to a series."""

    text: str
    words: str
    apply: Callable[[Series], Series]


def parse_change(text: str) -> Change:
    """Reads "bandwidth=2"; raises UsageError for a name or value that there is not."""
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


Parsed = tuple[str, Callable[[Series], Series]]


def _bandwidth(value: str) -> Parsed:
    factor = _positive("bandwidth", value)
    words = f"{factor:g} × the bandwidth"
    return words, lambda one: _on_network(one, bandwidth=factor)


def _latency(value: str) -> Parsed:
    factor = _positive("latency", value)
    words = f"{factor:g} × the latency"
    return words, lambda one: _on_network(one, latency=factor)


def _on_network(one: Series, *, latency: float = 1.0, bandwidth: float = 1.0) -> Series:
    network = one.network.scaled(latency=latency, bandwidth=bandwidth)
    return replace(one, network=network, model=replace(one.model, network=network))


def _gradients(value: str) -> Parsed:
    value = value.lower()
    if value not in ELEMENT_BYTES:
        raise UnknownName("value for --change gradients:", value, ELEMENT_BYTES)
    words = f"gradients sent as {value}; converting them costs nothing"

    def apply(one: Series) -> Series:
        sizes = {DTYPE_BYTES.get(d) for trace in one.inputs.traces for d in trace.gradient_dtypes}
        if len(sizes) != 1 or (size := sizes.pop()) is None:
            raise UsageError(f"--change gradients={value}: gradients are not all of one known size")
        part = ELEMENT_BYTES[value] / size
        buckets = (replace(b, nbytes=round(b.nbytes * part)) for b in one.model.buckets)
        return replace(one, model=replace(one.model, buckets=tuple(buckets)))

    return words, apply


def _accumulate(value: str) -> Parsed:
    steps = _positive("accumulate", value)
    if steps != int(steps):
        raise UsageError(f"--change accumulate={value}: expected a whole number of micro-steps")
    words = f"one synchronization in {units.counted(int(steps), 'micro-step')}"

    def apply(one: Series) -> Series:
        return replace(one, model=replace(one.model, accumulation_steps=int(steps)))

    return words, apply


def _bucket_cap(value: str) -> Parsed:
    cap = _positive("bucket-cap-mb", value)
    words = f"buckets of up to {cap:g} MiB, the first one too"

    def apply(one: Series) -> Series:
        buckets = into_buckets(one.model.trace, cap_bytes=cap * MEBI)
        return replace(one, model=replace(one.model, buckets=buckets))

    return words, apply


def _stragglers(value: str) -> Parsed:
    if value != "none":
        raise UsageError(f"--change stragglers={value}: expected stragglers=none")
    words = "all replicas take equally long"
    return words, lambda one: replace(one, model=one.model.without_stragglers())


def _overlap(value: str) -> Parsed:
    if value not in OVERLAPS:
        raise UnknownName("value for --change overlap:", value, OVERLAPS)
    overlap: Overlap = "perfect" if value == "perfect" else "none"
    words = {
        "perfect": "communication hidden as soon as the first bucket is ready, at no cost",
        "none": "all communication after the backward pass, which then does not slow it down",
    }[overlap]
    return words, lambda one: replace(one, model=replace(one.model, overlap=overlap))


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


_CHANGES: dict[str, Callable[[str], Parsed]] = {
    "bandwidth": _bandwidth,
    "latency": _latency,
    "gradients": _gradients,
    "accumulate": _accumulate,
    "bucket-cap-mb": _bucket_cap,
    "stragglers": _stragglers,
    "overlap": _overlap,
}
