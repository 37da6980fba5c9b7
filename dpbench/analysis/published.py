"""Numbers that someone else published, from a CSV file: single values without an interval.

Three forms, told apart by their columns:
  throughput  group_size, images_per_second, backend, batch_size
  time        group_size, one of seconds, minutes, hours: a fixed amount of work (strong scaling);
              backend and batch_size may be missing
  speedup     group_size, speedup over one replica; backend and batch_size may be missing
`gpus` may stand for `group_size`; `implementation` (default "published") and `item` (default
"images") are optional; columns named *_claimed are shown as claims. Other columns are not read,
and a note says so. Everything else is an error that names the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpbench.analysis.configuration import ConfigurationSummary, in_order, with_note
from dpbench.analysis.csv_cells import CsvLine, one_of, read_table
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.scaling import BASELINE, Kind, efficiency, speedup
from dpbench.errors import StoreError
from dpbench.records import Status

SECONDS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
SPEEDUP = "speedup"
COUNTS = ("group_size", "gpus")
OPTIONAL = ("implementation", "item", "backend", "batch_size")
CLAIMED = "_claimed"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Columns:
    """What the header says."""

    count: str
    value: str
    kind: Kind
    known: tuple[str, ...]
    claims: tuple[str, ...]
    unread: tuple[str, ...]


def from_csv(path: Path) -> tuple[ConfigurationSummary, ...]:
    """Reads a file of published numbers; raises StoreError if it is not exactly that."""
    names, lines = read_table(path)
    columns = _understand(path, names)
    rows: dict[tuple[object, ...], tuple[int, ConfigurationSummary]] = {}
    for line in lines:
        row = _row(line, columns)
        key = (row.implementation, row.backend, row.group_size, row.batch_size)
        if key in rows:
            raise line.error(
                columns.count, f"each configuration once ({row.label} is on line {rows[key][0]})"
            )
        rows[key] = (line.number, row)
    return in_order(_with_scaling([row for _, row in rows.values()], columns))


def _understand(path: Path, names: Sequence[str]) -> _Columns:
    count = one_of(path, names, COUNTS)
    value = one_of(path, names, ("images_per_second", SPEEDUP, *SECONDS))
    kind: Kind = "time" if value in SECONDS else "throughput"
    for required in ("backend", "batch_size") if value == "images_per_second" else ():
        if required not in names:
            raise StoreError(f"{path}, line 1: expected a column {required!r}, got {list(names)}")
    read = {count, value, *OPTIONAL}
    claims = tuple(name for name in names if name.endswith(CLAIMED))
    return _Columns(
        count=count,
        value=value,
        kind=kind,
        known=tuple(name for name in names if name in read),
        claims=claims,
        unread=tuple(name for name in names if name not in read and name not in claims),
    )


def _row(line: CsvLine, columns: _Columns) -> ConfigurationSummary:
    def text(column: str, default: str) -> str:
        return line.name(column) if column in columns.known else default

    group_size = line.whole(columns.count)
    batch_size = line.whole("batch_size") if "batch_size" in columns.known else None
    item = text("item", "images")
    value = line.positive(columns.value)
    timed, relative = columns.kind == "time", columns.value == SPEEDUP
    gain = LogMean.of_single(value).estimate("×") if relative else None
    row = ConfigurationSummary(
        implementation=text("implementation", "published"),
        backend=line.name("backend") if "backend" in columns.known else None,
        group_size=group_size,
        batch_size=batch_size,
        # Of times and speedups it is not said whether the batch was per replica.
        global_batch_size=None
        if timed or relative or batch_size is None
        else batch_size * group_size,
        item=item,
        status=Status.COMPLETED,
        throughput=None if timed or relative else LogMean.of_single(value).estimate(f"{item}/s"),
        duration=_duration(value * SECONDS[columns.value]) if timed else None,
        speedup=gain,
        efficiency=None if gain is None else efficiency(gain, group_size),
        repetitions=1,
        claims=tuple((name, line.name(name)) for name in columns.claims),
    )
    if columns.unread:
        row = with_note(row, f"columns not read: {', '.join(columns.unread)}")
    return row


def _duration(seconds: float) -> Estimate:
    return LogMean.of_single(seconds).estimate("s")


def _with_scaling(
    rows: Sequence[ConfigurationSummary], columns: _Columns
) -> list[ConfigurationSummary]:
    if columns.value == SPEEDUP:
        return list(rows)
    ones = {
        (row.implementation, row.backend, row.batch_size): row
        for row in rows
        if row.group_size == 1
    }
    scaled = []
    for row in rows:
        base = ones.get((row.implementation, row.backend, row.batch_size))
        if base is None:
            scaled.append(with_note(row, f"{row.label}: no speedup, no row at group size 1"))
            continue
        gain = BASELINE
        if row is not base:
            gain = speedup(_speed(base), _speed(row), kind=columns.kind)
        scaled.append(replace(row, speedup=gain, efficiency=efficiency(gain, row.group_size)))
    return scaled


def _speed(row: ConfigurationSummary) -> LogMean:
    estimate = row.throughput or row.duration
    assert estimate is not None
    return LogMean.of_single(estimate.value)
