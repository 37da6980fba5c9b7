"""Published numbers of others, from a CSV file.

Three forms, told apart by their columns:
  throughput  group_size, images_per_second, backend, batch_size
  time        group_size, one of seconds, minutes, hours: a fixed amount of work (strong scaling);
              backend and batch_size may be missing
  speedup     group_size, speedup over one replica; backend and batch_size may be missing
`gpus` may stand for `group_size`, `batch_per_gpu` for `batch_size`. Optional are `implementation`
(default: the model, or else "published"), `item` (default "images") and `source` (shown below the
table), with which `backend` and `batch_size` may be empty: not known. `model`, `data` and
`hardware` tell rows apart that would be called alike. `scaling` of throughputs must be weak.
Columns named *_claimed are shown as claims. Numbers are single values without an interval, unless
throughputs have all of images_per_second_low, _high, _sample_size and _basis, as in dpbench's own
rows: a 95 % t interval on logarithms, over "repetitions" or "step batches". Other columns are not
read, and a note says so. Everything else is an error that names the line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpbench.analysis.configuration import ConfigurationSummary, in_order, with_note
from dpbench.analysis.csv_cells import CsvLine, one_of, read_table
from dpbench.analysis.estimate import Basis, LogMean, t_quantile
from dpbench.analysis.scaling import BASELINE, SpeedKind, efficiency, speedup
from dpbench.errors import StoreError
from dpbench.records.trial import Status

SECONDS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
SPEED, SPEEDUP = "images_per_second", "speedup"
UNNAMED = "published"
COUNT_COLUMNS = ("group_size", "gpus")
BATCH_COLUMNS = ("batch_size", "batch_per_gpu")
TRAITS = ("model", "data", "hardware")
"""Columns on what was trained, and where: what differs between rows of one name joins the name."""
SCALING = "scaling"
OPTIONAL = ("implementation", "item", "backend", "source", SCALING, *TRAITS)
LOW, HIGH, SAMPLE_SIZE, BASIS = SPREAD = tuple(
    f"{SPEED}_{part}" for part in ("low", "high", "sample_size", "basis")
)
SAMPLED: tuple[Basis, ...] = ("repetitions", "step batches")
CLAIMED = "_claimed"
TABLE_COLUMNS = (SPEED, SPEEDUP, "status")
"""Columns that only dpbench writes side by side."""
LOPSIDED = 0.02
"""Allowed asymmetry of an interval on logarithms, as a share of its reach: digits are rounded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSpeed:
    """One configuration, as far as its source describes it; None for unknown values."""

    implementation: str
    backend: str | None
    group_size: int
    batch_size: int | None
    item: str
    speed: LogMean
    """Speed of all replicas, items per second; for kind "time", seconds for a fixed amount of work.
    """
    kind: SpeedKind = "throughput"
    source: str | None = None
    """Who measured what, and how; shown below the table."""
    notes: tuple[str, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Key that identifies a configuration."""
        return (self.implementation, self.backend, self.group_size, self.batch_size)


def summaries(speeds: Iterable[PublishedSpeed]) -> tuple[ConfigurationSummary, ...]:
    """One row each, with its speedup over group size 1 of the same series, in table order."""
    speeds = _with_one_source(list(speeds))
    ones = {one.key: one for one in speeds if one.group_size == 1}
    return in_order(_with_scaling(one, ones.get(replace(one, group_size=1).key)) for one in speeds)


def _with_scaling(one: PublishedSpeed, base: PublishedSpeed | None) -> ConfigurationSummary:
    row = row_of(one)
    if base is None:
        return with_note(row, f"{row.label}: no speedup, no row at group size 1")
    gain = BASELINE if one is base else speedup(base.speed, one.speed, kind=one.kind)
    return replace(row, speedup=gain, efficiency=efficiency(gain, one.group_size))


def row_of(one: PublishedSpeed) -> ConfigurationSummary:
    """The row, without its speedup."""
    timed = one.kind == "time"
    known = one.batch_size is not None and not timed
    row = ConfigurationSummary(
        implementation=one.implementation,
        backend=one.backend,
        group_size=one.group_size,
        batch_size=one.batch_size,
        # For times it is unknown whether the batch was per replica.
        global_batch_size=(one.batch_size or 0) * one.group_size if known else None,
        item=one.item,
        status=Status.COMPLETED,
        throughput=None if timed else one.speed.estimate(f"{one.item}/s"),
        duration=one.speed.estimate("s") if timed else None,
        repetitions=one.speed.sample_size if one.speed.basis == "repetitions" else 1,
        claims=one.claims,
    )
    source = () if one.source is None else (f"{row.label}: source: {one.source}",)
    return with_note(row, *source, *one.notes)


def _with_one_source(speeds: list[PublishedSpeed]) -> list[PublishedSpeed]:
    """The speeds; if all have the same source, only one keeps it."""
    sources = {one.source for one in speeds}
    if len(sources) != 1 or None in sources:
        return speeds
    return [
        replace(one, source=None, notes=(f"source: {one.source}", *one.notes)) for one in speeds
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Columns:
    """The columns of the header."""

    count: str
    batch: str | None
    value: str
    kind: SpeedKind
    known: tuple[str, ...]
    spread: bool
    claims: tuple[str, ...]
    unread: tuple[str, ...]


def from_csv(path: Path) -> tuple[ConfigurationSummary, ...]:
    """Read a file of published numbers; raises StoreError if it has another form."""
    names, lines = read_table(path)
    columns = _understand(path, names)
    speeds: dict[tuple[object, ...], tuple[int, PublishedSpeed]] = {}
    for line, name in _named(list(lines), columns):
        speed = _speed(line, columns, name)
        if (first := speeds.get(speed.key)) is not None:
            label = row_of(speed).label
            raise line.error(
                columns.count, f"each configuration once ({label} is on line {first[0]})"
            )
        speeds[speed.key] = (line.number, speed)
    found = [speed for _, speed in speeds.values()]
    return in_order(map(_of_speedup, found)) if columns.value == SPEEDUP else summaries(found)


def _understand(path: Path, names: Sequence[str]) -> _Columns:
    if {*TABLE_COLUMNS} <= {*names}:
        raise StoreError(
            f"{path} is a table that dpbench wrote, not published numbers; give the results "
            "folder that it was made from"
        )
    count = one_of(path, names, COUNT_COLUMNS)
    value = one_of(path, names, (SPEED, SPEEDUP, *SECONDS))
    kind: SpeedKind = "time" if value in SECONDS else "throughput"
    batch = one_of(path, names, BATCH_COLUMNS) if {*BATCH_COLUMNS} & {*names} else None
    needed = ("backend", BATCH_COLUMNS[0]) if value == SPEED and "source" not in names else ()
    for required in needed:
        if required not in (*names, BATCH_COLUMNS[0] if batch else None):
            raise StoreError(f"{path}, line 1: expected a column {required!r}, got {list(names)}")
    spread = value == SPEED and {*SPREAD} <= {*names}
    read = {count, batch, value, *OPTIONAL, *(SPREAD if spread else ())}
    claims = tuple(name for name in names if name.endswith(CLAIMED))
    return _Columns(
        count=count,
        batch=batch,
        value=value,
        kind=kind,
        known=tuple(name for name in names if name in read),
        spread=spread,
        claims=claims,
        unread=tuple(name for name in names if name not in read and name not in claims),
    )


def _named(lines: Sequence[CsvLine], columns: _Columns) -> Iterator[tuple[CsvLine, str]]:
    """Each line with the name of its implementation: "VGG16(real)" if there is another VGG16."""
    traits = [
        {trait: line.phrase(trait) for trait in TRAITS if trait in columns.known} for line in lines
    ]
    bases = [
        line.name("implementation")
        if "implementation" in columns.known
        else known.pop("model", "") or UNNAMED
        for line, known in zip(lines, traits, strict=True)
    ]
    seen: dict[tuple[str, str], set[str]] = {}
    for base, known in zip(bases, traits, strict=True):
        for trait, text in known.items():
            seen.setdefault((base, trait), set()).add(text)
    for line, base, known in zip(lines, bases, traits, strict=True):
        told = [text for trait, text in known.items() if text and len(seen[base, trait]) > 1]
        yield line, f"{base}({', '.join(told)})" if told else base


def _speed(line: CsvLine, columns: _Columns, name: str) -> PublishedSpeed:
    sourced = "source" in columns.known
    known = {column for column in columns.known if line.cells[column] or not sourced}
    value = line.positive(columns.value) * SECONDS.get(columns.value, 1.0)
    if columns.kind == "throughput" and line.cells.get(SCALING, "weak") not in ("", "weak"):
        raise line.error(SCALING, "weak")
    unread = ", ".join(columns.unread)
    return PublishedSpeed(
        implementation=name,
        backend=line.name("backend") if "backend" in known else None,
        group_size=line.whole(columns.count),
        batch_size=line.whole(columns.batch) if columns.batch in known else None,
        item=line.name("item") if "item" in columns.known else "images",
        speed=_with_spread(line, value) if columns.spread else LogMean.of_single(value),
        kind=columns.kind,
        source=_source(line, columns),
        notes=(f"columns not read: {unread}",) if unread else (),
        claims=tuple((name, line.name(name)) for name in columns.claims),
    )


def _source(line: CsvLine, columns: _Columns) -> str | None:
    """Who measured, and on what."""
    told = [
        text + (" data" if column == "data" else "")
        for column in ("source", "hardware", "data")
        if column in columns.known and (text := line.phrase(column))
    ]
    return ", ".join(told) or None


def _with_spread(line: CsvLine, value: float) -> LogMean:
    """The value with the standard error from its interval: its reach on logarithms ÷ t."""
    basis = next((known for known in SAMPLED if known == line.cells[BASIS]), None)
    if basis is None and line.cells[BASIS] != "single value":
        raise line.error(BASIS, f"one of {', '.join(SAMPLED)}, single value")
    size = line.whole(SAMPLE_SIZE)
    if basis is None:
        for column in (LOW, HIGH):
            if line.cells[column]:
                raise line.error(column, "nothing, as the number is a single value")
        return LogMean.of_single(value)
    if size < 2:
        raise line.error(SAMPLE_SIZE, "2 or more for an interval")
    down = math.log(value / line.positive(LOW))
    up = math.log(line.positive(HIGH) / value)
    if down < 0 or abs(up - down) > LOPSIDED * (up + down):
        raise line.error(HIGH, f"{value * math.exp(down):.6g}, as far above {value:g} as the low")
    error = (up + down) / 2 / t_quantile(size - 1)
    return LogMean(
        value=value,
        squared_error=error**2,
        degrees_of_freedom=size - 1,
        sample_size=size,
        basis=basis,
    )


def _of_speedup(one: PublishedSpeed) -> ConfigurationSummary:
    """The row of a speedup; it is unknown whether the batch was per replica."""
    gain = one.speed.estimate("×")
    return replace(
        row_of(one),
        global_batch_size=None,
        throughput=None,
        speedup=gain,
        efficiency=efficiency(gain, one.group_size),
    )
