"""Scaling series: one thing measured at several group sizes, as input of a fit.

They come from the records of a sweep, or from a CSV file in the form of
results/published/weak_scaling.csv, one row a point:
  gpus, batch_per_gpu, and images_per_second or seconds_per_step (both, if they agree)
  source, hardware, model, data   texts that tell series apart
  implementation                  one of dpbench's, for its mechanism
  scaling                         weak (default) or strong: batch_per_gpu × gpus stays the same
  gpus_per_node                   no prediction then leaves a node that no measurement leaves
The forms that `dpbench report` reads, see analysis.published, are understood too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from dpbench.analysis.configuration import (
    ConfigurationSummary,
    by_configuration,
    usable_repetitions,
)
from dpbench.analysis.csv_cells import CsvLine, read_table
from dpbench.analysis.estimate import LogMean
from dpbench.analysis.published import from_csv
from dpbench.analysis.scaling import Speed
from dpbench.errors import StoreError, UnknownName, UsageError
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.specs import Scaling, TrialSpec, differing_fields, series_name
from dpbench.specs.traits import IMPLEMENTATIONS


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


BATCH = "batch_per_gpu"
SPEEDS = ("images_per_second", "seconds_per_step")
SERIES_COLUMNS = (BATCH, SPEEDS[1])
"""Columns that identify this form, in any capitalization."""
NAMES = ("source", "hardware", "model", "data", "implementation")
FIXED_WORK = (
    "a fixed amount of work, taken to be done in steps of a fixed batch per replica, of which n "
    "replicas take 1/n; if the batch in all was fixed, more replicas lose more than the law says"
)
SECONDS_PER_DAY = 86_400
ROUNDING = 0.01
"""Allowed deviation of a printed throughput from batch × gpus ÷ printed seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A parsed line of the file."""

    line: CsvLine
    names: tuple[str, ...]
    """Values of `NAMES`; "" if missing."""
    scaling: Scaling
    group_size: int
    batch_size: int
    replicas_per_node: int | None
    seconds: float

    @property
    def series_batch_size(self) -> int:
        """The batch size that is constant along the series."""
        return self.batch_size * (1 if self.scaling == "weak" else self.group_size)


def read_series(path: Path) -> tuple[Series, ...]:
    """The series of a file, in its order; raises StoreError that names the line."""
    names, lines = read_table(path)
    if BATCH not in names and not set(SERIES_COLUMNS) & {name.lower() for name in names}:
        return _of_published(path)
    for required in ("gpus", BATCH):
        if required not in names:
            raise StoreError(f"{path}, line 1: expected a column {required!r}, got {names}")
    if not set(SPEEDS) & set(names):
        raise StoreError(f"{path}, line 1: expected a column out of {', '.join(SPEEDS)}")
    groups: dict[tuple[object, ...], dict[int, _Row]] = {}
    for line in lines:
        row = _read_row(line)
        group = groups.setdefault((row.names, row.scaling, row.series_batch_size), {})
        if (first := group.get(row.group_size)) is not None:
            raise line.error(
                "gpus", f"each group size of a series once (it is on line {first.line.number})"
            )
        group[row.group_size] = row
    rows = [row for group in groups.values() for row in group.values()]
    _require_shared_batches(rows)
    needs_source = len({_label_of_rows(row, source=False) for row in rows}) < len(groups)
    return tuple(
        _series_of_rows(list(g.values()), rows, source=needs_source) for g in groups.values()
    )


def _read_row(line: CsvLine) -> _Row:
    given = line.cells
    names = tuple(line.phrase(name) if name in given else "" for name in NAMES)
    if names[-1] and names[-1].partition("(")[0] not in IMPLEMENTATIONS:
        unknown = UnknownName("implementation", names[-1], IMPLEMENTATIONS)
        raise StoreError(f"{line.path}, line {line.number}: {unknown}")
    scaling: Scaling = "strong" if given.get("scaling") == "strong" else "weak"
    if given.get("scaling", "weak") not in ("", "weak", "strong"):
        raise line.error("scaling", "weak or strong")
    group_size, batch_size = line.whole("gpus"), line.whole(BATCH)
    node = line.whole("gpus_per_node") if given.get("gpus_per_node") else None
    return _Row(
        line=line,
        names=names,
        scaling=scaling,
        group_size=group_size,
        batch_size=batch_size,
        replicas_per_node=node,
        seconds=_read_seconds(line, group_size * batch_size),
    )


def _read_seconds(line: CsvLine, items: int) -> float:
    """Seconds of a step, from whichever speed is given; if both are, they must agree."""
    columns = [name for name in SPEEDS if name in line.cells]
    given = [name for name in columns if line.cells[name]] or columns[:1]
    speed = {name: line.positive(name) for name in given}
    seconds = speed.get(SPEEDS[1]) or items / speed[SPEEDS[0]]
    by_throughput = items / speed.get(SPEEDS[0], items / seconds)
    if abs(by_throughput / seconds - 1) > ROUNDING:
        raise line.error(SPEEDS[1], f"{by_throughput:.6g} (gpus × {BATCH} ÷ {SPEEDS[0]})")
    return by_throughput


def _require_shared_batches(rows: Sequence[_Row]) -> None:
    """Raise StoreError if no two rows of strong scaling share a total batch size."""
    families: dict[tuple[str, ...], list[_Row]] = {}
    for row in rows:
        if row.scaling == "strong":
            families.setdefault(row.names, []).append(row)
    for family in families.values():
        first = family[0]
        other = next((row for row in family if row.group_size != first.group_size), None)
        if other is not None and len({row.series_batch_size for row in family}) == len(family):
            raise other.line.error(
                BATCH,
                f"{first.series_batch_size / other.group_size:g} (strong scaling: {BATCH} × gpus "
                f"stays {first.series_batch_size}, as on line {first.line.number})",
            )


def _label_of_rows(row: _Row, *, source: bool) -> str:
    origin, *others = row.names
    batch = f"batch {row.series_batch_size}" + (" in all" if row.scaling == "strong" else "")
    words = [*others, batch] if not source else [*others, batch, origin]
    return ", ".join(word for word in words if word)


def _series_of_rows(group: Sequence[_Row], everything: Sequence[_Row], *, source: bool) -> Series:
    ordered = sorted(group, key=lambda row: row.group_size)
    first = ordered[0]
    nodes = {row.replicas_per_node for row in group}
    if len(nodes) > 1:
        raise first.line.error("gpus_per_node", "the same in all rows of a series")
    lone = {
        row.batch_size: row.seconds
        for row in everything
        if first.scaling == "strong" and row.group_size == 1 and row.names == first.names
    }
    return Series(
        label=_label_of_rows(first, source=source),
        points=tuple(_printed_point(row.group_size, row.seconds) for row in ordered),
        scaling=first.scaling,
        items_per_step=first.series_batch_size,
        implementation=first.names[-1] or None,
        batch_size=first.series_batch_size,
        replicas_per_node=first.replicas_per_node,
        lone_steps=tuple(
            LoneStep(batch_size=batch, step_seconds=LogMean.of_single(seconds))
            for batch, seconds in sorted(lone.items())
        ),
    )


def _printed_point(group_size: int, seconds: float) -> Point:
    return Point(group_size=group_size, step_seconds=LogMean.of_single(seconds))


def _of_published(path: Path) -> tuple[Series, ...]:
    """Series of published throughputs by backend and batch size, times of a fixed amount of work,
    or speedups."""
    groups: dict[tuple[object, ...], list[ConfigurationSummary]] = {}
    for row in from_csv(path):
        groups.setdefault((row.implementation, row.backend, row.batch_size), []).append(row)
    return tuple(_published(path, rows) for rows in groups.values())


def _published(path: Path, rows: Sequence[ConfigurationSummary]) -> Series:
    ordered = sorted(rows, key=lambda row: row.group_size)
    first = ordered[0]
    words = [path.stem, "" if first.implementation == "published" else first.implementation]
    words += [first.backend or "", "" if first.batch_size is None else f"batch {first.batch_size}"]
    label = ", ".join(word for word in words if word)
    if first.throughput is not None:
        assert first.batch_size is not None
        return Series(
            label=label,
            points=tuple(
                _printed_point(row.group_size, (row.global_batch_size or 0) / row.throughput.value)
                for row in ordered
                if row.throughput is not None
            ),
            items_per_step=first.batch_size,
            unit=first.throughput.unit,
            implementation=first.implementation,
            batch_size=first.batch_size,
        )
    if first.duration is not None:
        times = [(row.group_size, row.duration.value) for row in ordered if row.duration]
        return Series(
            label=label,
            points=tuple(_printed_point(n, n * seconds) for n, seconds in times),
            items_per_step=SECONDS_PER_DAY,
            unit="runs/day",
            implementation=first.implementation,
            notes=(FIXED_WORK,),
        )
    # Speedups at a fixed work per replica; one replica has the speedup 1, listed or not.
    gains = {1: 1.0} | {row.group_size: row.speedup.value for row in ordered if row.speedup}
    return Series(
        label=label,
        points=tuple(_printed_point(n, n / gain) for n, gain in sorted(gains.items())),
        unit="×",
        implementation=first.implementation,
    )
