"""Scaling series from a CSV file in the form of results/published/weak_scaling.csv, a row a point.

  gpus, batch_per_gpu, and images_per_second or seconds_per_step (both, if they agree)
  source, hardware, model, data   texts that tell series apart
  implementation                  one of dpbench's, for its mechanism
  scaling                         weak (default) or strong: batch_per_gpu × gpus stays the same
  gpus_per_node                   no prediction then leaves a node that no measurement leaves
The forms that `dpbench report` reads, see analysis.published, are understood too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.csv_cells import CsvLine, read_table
from dpbench.analysis.estimate import LogMean
from dpbench.analysis.laws.series import LoneStep, Point, Series
from dpbench.analysis.published import (
    BATCH_COLUMNS,
    COUNT_COLUMNS,
    SCALING,
    SPEED,
    UNNAMED,
    from_csv,
)
from dpbench.errors import StoreError, UnknownName
from dpbench.specs import Scaling
from dpbench.specs.traits import IMPLEMENTATIONS

COUNT, BATCH = COUNT_COLUMNS[1], BATCH_COLUMNS[1]
SPEEDS = (SPEED, "seconds_per_step")
SERIES_COLUMNS = (BATCH, SPEEDS[1])
"""Columns that identify this form, in any capitalization."""
NODE = "gpus_per_node"
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
    for required in (COUNT, BATCH):
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
                COUNT, f"each group size of a series once (it is on line {first.line.number})"
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
    scaling: Scaling = "strong" if given.get(SCALING) == "strong" else "weak"
    if given.get(SCALING, "weak") not in ("", "weak", "strong"):
        raise line.error(SCALING, "weak or strong")
    group_size, batch_size = line.whole(COUNT), line.whole(BATCH)
    node = line.whole(NODE) if given.get(NODE) else None
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
        raise first.line.error(NODE, "the same in all rows of a series")
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
    words = [path.stem, "" if first.implementation == UNNAMED else first.implementation]
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
