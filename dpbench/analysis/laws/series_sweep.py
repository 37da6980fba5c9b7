"""Scaling series from the records of a sweep, with the noise of their repetitions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dpbench.analysis.baselines import Speed
from dpbench.analysis.laws.series import LoneStep, Point, Series
from dpbench.analysis.repetitions import by_configuration, usable_repetitions
from dpbench.environment import Environment
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec, differing_fields, series_name


def series_of(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> tuple[Series, ...]:
    """A series for everything that was measured, if only at one group size; as first run.

    Speeds that may not be believed (wrong gradients, failed runs) are left out.
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
            sorted(specs, key=_size),
            speeds,
            last[specs[0]],
            _machines(records, set(specs), environments),
        )
        for shared, specs in groups.items()
    )


def _size(spec: TrialSpec) -> int:
    return spec.group_size


def _apart_from_size(spec: TrialSpec) -> TrialSpec:
    """What all points of a series have in common."""
    return replace(spec.of_one_replica, devices=tuple(sorted(_kinds([spec]))))


def _label(spec: TrialSpec) -> str:
    name = series_name(spec.implementation_label, spec.backend)
    in_all = " in all" if spec.scaling == "strong" else ""
    more = f" × {spec.accumulation_steps}" if spec.accumulation_steps > 1 else ""
    return f"{name}, batch {spec.batch_size}{more}{in_all}"


def _unique_label(shared: TrialSpec, everything: Sequence[TrialSpec]) -> str:
    """With what tells it from the first other one that would be called the same."""
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
        points=tuple(_point(spec, speeds[spec]) for spec in specs),
        scaling=first.scaling,
        items_per_step=first.batch_size * first.accumulation_steps * record.items_per_sample,
        unit=f"{record.item}/s",
        implementation=first.implementation,
        batch_size=first.batch_size,
        replicas_per_node=_replicas_per_node(specs, machines),
        lone_steps=_lone_steps(first, speeds) if first.scaling == "strong" else (),
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


def _point(spec: TrialSpec, speed: Speed) -> Point:
    seconds = spec.effective_batch_size / speed.throughput.value
    step = replace(speed.throughput, value=seconds)
    return Point(group_size=spec.group_size, step_seconds=step, speed=speed)


def _lone_steps(first: TrialSpec, speeds: Mapping[TrialSpec, Speed]) -> tuple[LoneStep, ...]:
    """One replica of the same at every batch size that was measured."""
    wanted = _apart_from_size(first)
    alone = [
        spec
        for spec in speeds
        if spec.group_size == 1
        and replace(_apart_from_size(spec), batch_size=first.batch_size) == wanted
    ]
    return tuple(
        LoneStep(batch_size=spec.batch_size, step_seconds=_point(spec, speeds[spec]).step_seconds)
        for spec in sorted(alone, key=lambda spec: spec.batch_size)
    )


def _machines(
    records: Iterable[TrialRecord], specs: set[TrialSpec], environments: Mapping[str, Environment]
) -> list[Environment]:
    """What the points were measured on, as far as it is known."""
    names = {r.environment_id for r in records if r.trial.configuration in specs}
    return [environments[name] for name in sorted(names) if name in environments]


def _kinds(specs: Iterable[TrialSpec]) -> set[str]:
    """Of devices: "cuda" of "cuda:0"."""
    return {device.partition(":")[0] for spec in specs for device in spec.devices}


def _replicas_per_node(specs: Sequence[TrialSpec], machines: Sequence[Environment]) -> int | None:
    """Of a series across hosts the most that one had, if it fills them one after the other. Else
    the GPUs of the machine; not known on CPUs, whose cores replicas share as they like."""
    if any(spec.nodes for spec in specs):
        share = max(spec.largest_share for spec in specs)
        packed = all(len(set(spec.hosts)) == math.ceil(spec.group_size / share) for spec in specs)
        return share if packed else None
    counts = {len(machine.accelerators) for machine in machines}
    return counts.pop() or None if _kinds(specs) == {"cuda"} and len(counts) == 1 else None
