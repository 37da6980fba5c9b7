"""Scaling series: one thing measured at several group sizes, as input of a fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dpbench.analysis.configuration import (
    by_configuration,
    usable_repetitions,
)
from dpbench.analysis.estimate import LogMean
from dpbench.analysis.scaling import Speed
from dpbench.codec import differing_fields
from dpbench.errors import UsageError
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.specs import Scaling, TrialSpec, series_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A step at one group size."""

    group_size: int
    step_seconds: LogMean
    """Seconds of one optimizer step, or of a published fixed amount of work."""
    speed: Speed | None = None
    """Speed in a sweep: with the throughput of every repetition, for speedups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoneStep:
    """A step on one replica alone at some batch size; strong scaling divides it."""

    batch_size: int
    step_seconds: LogMean


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Step times along group sizes; everything else stays the same."""

    label: str
    points: tuple[Point, ...]
    """Points by ascending group size, each once."""
    scaling: Scaling = "weak"
    items_per_step: float = 1.0
    """Items per step of one replica in weak scaling, of the whole group in strong scaling."""
    unit: str = "images/s"
    """Unit of its throughput."""
    implementation: str | None = None
    """Implementation; None for a published series of unknown implementation."""
    batch_size: int | None = None
    """Batch size per replica in weak scaling, of the group in strong scaling; None if not known."""
    replicas_per_node: int | None = None
    """Replicas per node; None if not known."""
    lone_steps: tuple[LoneStep, ...] = ()
    """Steps of one replica, only in strong scaling, by ascending batch size."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any(a >= b for a, b in pairwise(self.group_sizes)):
            raise ValueError(f"{self.label}: group sizes must ascend, got {self.group_sizes}")

    @property
    def group_sizes(self) -> tuple[int, ...]:
        return tuple(point.group_size for point in self.points)

    @property
    def relative(self) -> bool:
        """Whether it holds speedups: then step times are in steps of one replica, not in
        seconds."""
        return self.unit == "×"

    def items(self, group_size: int) -> float:
        """Items in one step of the whole group."""
        return self.items_per_step * (group_size if self.scaling == "weak" else 1)

    def up_to(self, largest: int) -> Series:
        """The series without the points beyond a group size, for fits to the smaller ones."""
        kept = tuple(point for point in self.points if point.group_size <= largest)
        return replace(self, points=kept)

    def point(self, group_size: int) -> Point | None:
        return next((p for p in self.points if p.group_size == group_size), None)

    def throughput(self, point: Point) -> LogMean:
        """Items per second, with the same uncertainty on the logarithm as the step time."""
        seconds = point.step_seconds
        return replace(seconds, value=self.items(point.group_size) / seconds.value)


def require_points(series: Series, *, because: str = "") -> None:
    """Raise UsageError for a series that nothing can be fitted to."""
    if len(series.points) < 2:
        sizes = ", ".join(map(str, series.group_sizes)) or "none"
        raise UsageError(
            f"{series.label}: a fit takes at least two group sizes, got {sizes}{because}"
        )


def series_of(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> tuple[Series, ...]:
    """A series for everything that was measured, even at a single group size; in the order of first
    runs.

    Unreliable speeds (wrong gradients, failed runs) are left out.
    """
    final = by_configuration(records)
    speeds = {
        spec: Speed.of(usable)
        for spec, group in final.items()
        if (usable := usable_repetitions(group))
    }
    last = {spec: group[-1] for spec, group in final.items()}
    groups: dict[TrialSpec, list[TrialSpec]] = {}
    for spec in speeds:
        groups.setdefault(_apart_from_size(spec), []).append(spec)
    return tuple(
        _series(
            _unique_label(shared, list(groups)),
            sorted(specs, key=lambda spec: spec.group_size),
            speeds,
            last[specs[0]],
            _machines(records, set(specs), environments),
        )
        for shared, specs in groups.items()
    )


def _apart_from_size(spec: TrialSpec) -> TrialSpec:
    """The specification that all points of a series share."""
    return replace(spec.of_one_replica, devices=tuple(sorted(_kinds([spec]))))


def _label(spec: TrialSpec) -> str:
    name = series_name(spec.implementation_label, spec.backend)
    in_all = " in all" if spec.scaling == "strong" else ""
    more = f" × {spec.accumulation_steps}" if spec.accumulation_steps > 1 else ""
    return f"{name}, batch {spec.batch_size}{more}{in_all}"


def _unique_label(shared: TrialSpec, everything: Sequence[TrialSpec]) -> str:
    """The label, with a distinction from the first other one of the same name."""
    label = _label(shared)
    twins = [other for other in everything if other != shared and _label(other) == label]
    return f"{label} ({'; '.join(differing_fields(shared, twins[0]))})" if twins else label


def _series(
    label: str,
    specs: Sequence[TrialSpec],
    speeds: Mapping[TrialSpec, Speed],
    record: TrialRecord,
    machines: Sequence[Environment],
) -> Series:
    first = specs[0]
    return Series(
        label=label,
        points=tuple(_point(spec, speeds[spec], record.items_per_sample) for spec in specs),
        scaling=first.scaling,
        items_per_step=first.batch_size * first.accumulation_steps * record.items_per_sample,
        unit=f"{record.item}/s",
        implementation=first.implementation,
        batch_size=first.batch_size,
        replicas_per_node=_replicas_per_node(specs, machines),
        lone_steps=_lone_steps(first, speeds, record.items_per_sample),
        notes=tuple(_notes(label, specs, speeds, machines)),
    )


def _notes(
    label: str,
    specs: Sequence[TrialSpec],
    speeds: Mapping[TrialSpec, Speed],
    machines: Sequence[Environment],
) -> Iterator[str]:
    ran_in = sorted({name for spec in specs for name in speeds[spec].environments})
    if len(ran_in) > 1:
        yield (
            f"{label}: its points come from {len(ran_in)} environments ({', '.join(ran_in)}); "
            "they differ in more than the group size"
        )
    if machines and _kinds(specs) == {"cpu"}:
        cores = max(machine.cores for machine in machines)
        yield (
            f"measured on {cores} cores with {specs[0].threads_per_replica} a replica: what is "
            "predicted for more replicas than fit takes as many cores more"
        )


def _point(spec: TrialSpec, speed: Speed, items_per_sample: int) -> Point:
    seconds = spec.effective_batch_size * items_per_sample / speed.throughput.value
    step = replace(speed.throughput, value=seconds)
    return Point(group_size=spec.group_size, step_seconds=step, speed=speed)


def _lone_steps(
    first: TrialSpec, speeds: Mapping[TrialSpec, Speed], items_per_sample: int
) -> tuple[LoneStep, ...]:
    """Steps of one replica with the same settings, at every measured batch size; none in weak
    scaling, where none is divided."""
    if first.scaling == "weak":
        return ()
    wanted = _apart_from_size(first)
    alone = [
        spec
        for spec in speeds
        if spec.group_size == 1
        and replace(_apart_from_size(spec), batch_size=first.batch_size) == wanted
    ]
    return tuple(
        LoneStep(
            batch_size=spec.batch_size,
            step_seconds=_point(spec, speeds[spec], items_per_sample).step_seconds,
        )
        for spec in sorted(alone, key=lambda spec: spec.batch_size)
    )


def _machines(
    records: Iterable[TrialRecord], specs: set[TrialSpec], environments: Mapping[str, Environment]
) -> list[Environment]:
    """The known machines of the points."""
    names = {r.environment_id for r in records if r.trial.configuration in specs}
    return [environments[name] for name in sorted(names) if name in environments]


def _kinds(specs: Iterable[TrialSpec]) -> set[str]:
    """Kinds of devices: "cuda" for "cuda:0"."""
    return {device.partition(":")[0] for spec in specs for device in spec.devices}


def _replicas_per_node(specs: Sequence[TrialSpec], machines: Sequence[Environment]) -> int | None:
    """Replicas per node. Across hosts, the most on one host if hosts are filled one after the
    other. Otherwise the GPUs of the machine; unknown on CPUs, whose cores replicas share freely."""
    if any(spec.nodes for spec in specs):
        share = max(spec.largest_share for spec in specs)
        packed = all(len(set(spec.hosts)) == math.ceil(spec.group_size / share) for spec in specs)
        return share if packed else None
    counts = {len(machine.accelerators) for machine in machines}
    return counts.pop() or None if _kinds(specs) == {"cuda"} and len(counts) == 1 else None
