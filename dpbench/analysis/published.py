"""Published numbers of others, from a CSV file with a row for each configuration.

Columns: `group_size` (or `gpus`), and one speed: `images_per_second`, `seconds_per_step` (with a
batch size), `speedup` over one replica, or `seconds`, `minutes` or `hours` for a fixed amount of
work (strong scaling). Optional are `batch_size` (or `batch_per_gpu`; per replica), `backend`,
`implementation` (default "published"), `item` (default "images"), `source` (shown below the table)
`scaling` (must be weak) and `gpus_per_node`. Columns named *_claimed are shown as claims. Other
columns are not read, and a note says so; a column without a name, such as a data frame's index, is
skipped. An empty cell means that it is not known.

Numbers are single values without an interval. Everything else is an error that names the line.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpbench.analysis.configuration import ConfigurationSummary, in_order, with_note
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.scaling import (
    BASELINE,
    OWN,
    SpeedKind,
    efficiency,
    serial_fraction,
    speedup,
)
from dpbench.errors import StoreError
from dpbench.files import keep
from dpbench.messages import printable
from dpbench.records.trial import Status
from dpbench.specs.traits import SINGLE

CLAIMED = "_claimed"
SPELLINGS = {"gpus": "group_size", "batch_per_gpu": "batch_size"}
SECONDS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
SPEEDS = ("images_per_second", "seconds_per_step", "speedup", *SECONDS)
MOST_COLUMNS = 1000
LONGEST = 120
"""Characters of a wrong value that an error repeats."""

Count = Annotated[int, Field(ge=1, lt=10**9)]
Speed = Annotated[float, Field(ge=1e-9, le=1e15, allow_inf_nan=False)]
"""Wider than any training speed or time, and far from where floats overflow."""


class PublishedRow(BaseModel):
    """One line of the file; None and "" for what is not known."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    group_size: Count
    batch_size: Count | None = None
    images_per_second: Speed | None = None
    seconds_per_step: Speed | None = None
    speedup: Speed | None = None
    seconds: Speed | None = None
    minutes: Speed | None = None
    hours: Speed | None = None
    implementation: str = "published"
    backend: str | None = None
    item: str = "images"
    source: str = ""
    """Who measured, on what hardware and data."""
    scaling: Literal["weak"] = "weak"
    gpus_per_node: Count | None = None
    """Read by `projection.track_record` alone."""

    @property
    def throughput(self) -> float | None:
        """Items per second of all replicas."""
        if self.images_per_second is not None:
            return self.images_per_second
        if self.seconds_per_step is None or self.batch_size is None:
            return None
        return self.batch_size * self.group_size / self.seconds_per_step

    @property
    def duration_seconds(self) -> float | None:
        """Seconds for a fixed amount of work."""
        for name, factor in SECONDS.items():
            if (value := getattr(self, name)) is not None:
                return float(value) * factor
        return None


def from_csv(path: Path) -> tuple[ConfigurationSummary, ...]:
    """Read a file of published numbers; raises StoreError if it has another form."""
    columns, lines = _read(path)
    speeds = [name for name in SPEEDS if name in columns]
    if set(speeds) not in ({"images_per_second", "seconds_per_step"}, *({one} for one in SPEEDS)):
        raise StoreError(
            f"{path}, line 1: expected exactly one column out of {', '.join(SPEEDS)}, "
            f"got {', '.join(speeds) or columns}"
        )
    unread = [c for c in columns if c not in PublishedRow.model_fields and not c.endswith(CLAIMED)]
    notes = [f"columns not read: {', '.join(unread)}"] if unread else []
    rows: dict[tuple[object, ...], tuple[int, ConfigurationSummary]] = {}
    for number, cells in lines:
        row = _parse(path, number, cells)
        found = _summary(row, cells)
        key = (found.implementation, found.backend, found.group_size, found.batch_size)
        if key in rows:
            raise StoreError(
                f"{path}, line {number}: expected each configuration once ({found.label} is on "
                f"line {rows[key][0]})"
            )
        rows[key] = (number, with_note(found, *notes))
    return in_order(_with_scaling([row for _, row in rows.values()]))


def _read(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The columns, and the number and cells of each line."""
    try:
        keep(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = [name.strip() for name in reader.fieldnames or ()]
            if len(columns) > MOST_COLUMNS:
                raise StoreError(
                    f"{path}, line 1: {len(columns):,} columns; expected at most {MOST_COLUMNS}"
                )
            reader.fieldnames = columns = [SPELLINGS.get(name, name) for name in columns]
            lines = [(reader.line_num, cells) for cells in reader]
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is not a CSV file in UTF-8: {error}") from None
    if not lines:
        raise StoreError(f"{path}: expected a line of column names and lines of values")
    for number, cells in lines:
        if None in cells or None in cells.values():  # more or fewer values than columns
            raise StoreError(f"{path}, line {number}: expected {len(columns)} values")
    # A column without a name is the index that a data frame was written with.
    named = Counter(filter(None, columns))
    if doubled := [name for name, count in named.items() if count > 1]:
        raise StoreError(f"{path}, line 1: expected each column once, got {doubled[0]!r} twice")
    return [*named], [
        (number, {name: cells[name].strip() for name in named}) for number, cells in lines
    ]


def _parse(path: Path, number: int, cells: dict[str, str]) -> PublishedRow:
    try:
        row = PublishedRow.model_validate({name: text for name, text in cells.items() if text})
    except ValidationError as error:
        first = error.errors()[0]
        column = str(first["loc"][0])
        expected = first["msg"].replace("Input should be", "expected")
        got = printable(repr(cells.get(column, "")), LONGEST)
        raise StoreError(
            f"{path}, line {number}, column {column!r}: {expected}, got {got}"
        ) from None
    if row.throughput is None and row.duration_seconds is None and row.speedup is None:
        needed = [name for name in SPEEDS if name in cells]
        needed += ["batch_size"] if row.seconds_per_step else []
        raise StoreError(f"{path}, line {number}, column {needed[-1]!r}: expected a number, got ''")
    return row


def _summary(row: PublishedRow, cells: dict[str, str]) -> ConfigurationSummary:
    """The row without what other rows say about it."""
    speed, duration = row.throughput, row.duration_seconds
    # For times and speedups it is unknown whether the batch was per replica.
    known = speed is not None and row.batch_size is not None
    gain = None if row.speedup is None else LogMean.of_single(row.speedup).estimate("×")
    return ConfigurationSummary(
        implementation=row.implementation,
        implementation_label=row.implementation,
        backend=row.backend,
        group_size=row.group_size,
        batch_size=row.batch_size,
        global_batch_size=(row.batch_size or 0) * row.group_size if known else None,
        item=row.item,
        status=Status.COMPLETED,
        throughput=None if speed is None else LogMean.of_single(speed).estimate(f"{row.item}/s"),
        duration=None if duration is None else LogMean.of_single(duration).estimate("s"),
        speedup=gain,
        efficiency=None if gain is None else efficiency(gain, row.group_size),
        repetitions=1,
        source=row.source,
        claims=tuple((c, text) for c, text in cells.items() if c.endswith(CLAIMED) and text),
    )


def _with_scaling(rows: Sequence[ConfigurationSummary]) -> list[ConfigurationSummary]:
    """The rows with speedups over `single`, or if the table has none, over group size 1 of the same
    series, and the serial fractions that follow."""
    alone = [row for row in rows if row.group_size == 1]
    ones = {(row.series, row.batch_size): row for row in alone}
    singles = {row.batch_size: row for row in alone if row.implementation == SINGLE}
    found = []
    for row in rows:
        own = ones.get((row.series, row.batch_size))
        base = singles.get(row.batch_size) if singles else own
        if row.speedup is not None:
            row = replace(row, speedup_relative=row.speedup, reference=OWN)
        elif base is None:
            missing = f"{SINGLE} at this batch size" if singles else "row at group size 1"
            row = with_note(row, f"{row.label}: no speedup, no {missing}")
        else:
            gain = _gain(base, row)
            row = replace(
                row,
                speedup=gain,
                efficiency=efficiency(gain, row.group_size),
                reference=SINGLE if singles else OWN,
                speedup_relative=None if own is None else _gain(own, row),
            )
        if row.speedup is not None and row.group_size > 1:
            share = serial_fraction(row.speedup.value, row.group_size)
            row = replace(row, measured={"serial_fraction": share})
        found.append(row)
    return found


def _gain(base: ConfigurationSummary, row: ConfigurationSummary) -> Estimate:
    if row is base:
        return BASELINE
    kind: SpeedKind = "throughput" if row.throughput else "time"
    known = [one.throughput or one.duration for one in (base, row)]
    first, second = (LogMean.of_single(one.value) for one in known if one)
    return speedup(first, second, kind=kind)
