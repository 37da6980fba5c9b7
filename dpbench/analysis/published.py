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

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpbench.analysis.estimate import Estimate, single_value
from dpbench.analysis.rows import Row, in_order
from dpbench.analysis.scaling import OWN_ONE_REPLICA, UNITY, serial_fraction
from dpbench.errors import StoreError
from dpbench.files import protect
from dpbench.messages import printable
from dpbench.specs.traits import SINGLE

CLAIMED = "_claimed"
SPELLINGS = {"gpus": "group_size", "batch_per_gpu": "batch_size"}
SECONDS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
SPEED_COLUMNS = ("images_per_second", "seconds_per_step", "speedup", *SECONDS)
LONGEST = 120
"""Characters of a wrong value that an error repeats."""

PositiveCount = Annotated[int, Field(ge=1, lt=10**9)]
PositiveSpeed = Annotated[float, Field(ge=1e-9, le=1e15, allow_inf_nan=False)]
"""Wider than any training speed or time, and far from where floats overflow."""


class PublishedRow(BaseModel):
    """One line of the file; None and "" for what is not known."""

    model_config = ConfigDict(extra="allow", frozen=True)

    group_size: PositiveCount
    batch_size: PositiveCount | None = None
    images_per_second: PositiveSpeed | None = None
    seconds_per_step: PositiveSpeed | None = None
    speedup: PositiveSpeed | None = None
    seconds: PositiveSpeed | None = None
    minutes: PositiveSpeed | None = None
    hours: PositiveSpeed | None = None
    implementation: str = "published"
    backend: str | None = None
    item: str = "images"
    source: str = ""
    """Who measured, on what hardware and data."""
    scaling: Literal["weak"] = "weak"
    gpus_per_node: PositiveCount | None = None
    """Read by `tools/law_errors.py` alone."""

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
        times = ((getattr(self, unit), factor) for unit, factor in SECONDS.items())
        return next((value * factor for value, factor in times if value is not None), None)

    @property
    def speed(self) -> float | None:
        """Throughput, or 1 ÷ the time: ratios of speeds are speedups."""
        duration = self.duration_seconds
        return self.throughput if duration is None else 1 / duration

    @property
    def unread(self) -> dict[str, str]:
        """The cells of columns that are not fields, as claims are."""
        return self.model_extra or {}


def read_published(path: Path) -> tuple[PublishedRow, ...]:
    """The lines of a file of published numbers; raises StoreError if it has another form."""
    lines = _cells(path)
    columns = [*next(iter(lines.values()))]
    speeds = [name for name in SPEED_COLUMNS if name in columns]
    allowed = ({"images_per_second", "seconds_per_step"}, *({column} for column in SPEED_COLUMNS))
    if {*speeds} not in allowed:
        raise StoreError(
            f"{path}, line 1: expected exactly one column out of {', '.join(SPEED_COLUMNS)}, "
            f"got {', '.join(speeds) or columns}"
        )
    rows: dict[tuple[object, ...], tuple[int, PublishedRow]] = {}
    for number, cells in lines.items():
        place = f"{path}, line {number}"
        try:
            row = PublishedRow.model_validate({n: text for n, text in cells.items() if text})
        except ValidationError as error:
            first = error.errors()[0]
            column = str(first["loc"][0])
            expected = first["msg"].replace("Input should be", "expected")
            got = printable(repr(cells.get(column, "")), LONGEST)
            raise StoreError(f"{place}, column {column!r}: {expected}, got {got}") from None
        if row.speed is None and row.speedup is None:
            needed = "batch_size" if row.seconds_per_step else speeds[-1]
            raise StoreError(f"{place}, column {needed!r}: expected a number, got ''")
        key = (row.implementation, row.backend, row.group_size, row.batch_size)
        if key in rows:
            repeated = f"it is on line {rows[key][0]}, too"
            raise StoreError(f"{place}: expected each configuration once ({repeated})")
        rows[key] = (number, row)
    return tuple(row for _, row in rows.values())


def _cells(path: Path) -> dict[int, dict[str, str]]:
    """The cells of each line that has any, by column, and the lines by their number."""
    import pandas as pd  # half a second, which only published numbers need

    form = {"dtype": str, "header": None, "keep_default_na": False, "skip_blank_lines": False}
    try:
        protect(path)
        table = pd.read_csv(path, encoding="utf-8-sig", **form).map(str.strip).to_numpy().tolist()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise StoreError(f"{path} is not a CSV file in UTF-8: {str(error).strip()}") from None
    header = [SPELLINGS.get(name, name) for name in table[0]]
    # A column without a name is the index that a data frame was written with.
    if doubled := [name for name in header if name and header.count(name) > 1]:
        raise StoreError(f"{path}, line 1: expected each column once, got {doubled[0]!r} twice")
    lines = {
        number: {name: text for name, text in zip(header, cells, strict=True) if name}
        for number, cells in enumerate(table[1:], 2)
        if any(cells)
    }
    if not lines:
        raise StoreError(f"{path}: expected a line of column names and lines of values")
    return lines


def from_csv(path: Path) -> tuple[Row, ...]:
    """The rows of a file of published numbers; raises StoreError if it has another form.

    Speedups are over `single`, or if the table has none, over group size 1 of the same series.
    """
    lines = read_published(path)
    others = dict.fromkeys(name for line in lines for name in line.unread)
    claimed = [name for name in others if name.endswith(CLAIMED)]
    unread = [name for name in others if name not in claimed]
    alone = [line for line in lines if line.group_size == 1]
    ones = {(line.implementation, line.backend, line.batch_size): line for line in alone}
    singles = {line.batch_size: line for line in alone if line.implementation == SINGLE}
    against = SINGLE if singles else OWN_ONE_REPLICA
    rows = []
    for line in lines:
        one_replica = ones.get((line.implementation, line.backend, line.batch_size))
        reference = singles.get(line.batch_size) if singles else one_replica
        speedup, relative = _speedup(line, reference), _speedup(line, one_replica)
        values: dict[str, Any] = {name: line.unread.get(name) for name in claimed}
        values |= {"speedup": speedup, "speedup_relative": relative}
        notes = [f"columns not read: {', '.join(unread)}"] if unread else []
        if speedup is None:
            missing = f"{SINGLE} at this batch size" if singles else "row at group size 1"
            notes.append(f"no speedup, no {missing}")
        elif line.group_size > 1:
            values["serial_fraction"] = serial_fraction(speedup.value, line.group_size)
        if (speed := line.throughput) is not None:
            values["images_per_second"] = single_value(speed, f"{line.item}/s")
            # For times and speedups it is unknown whether the batch was per replica.
            values["global_batch_size"] = (line.batch_size or 0) * line.group_size or None
        if (duration := line.duration_seconds) is not None:
            values["duration_seconds"] = single_value(duration, "s")
        rows.append(
            Row(
                implementation=line.implementation,
                backend=line.backend,
                group_size=line.group_size,
                batch_size=line.batch_size,
                item=line.item,
                repetitions=1,
                speedup_reference=against if speedup else "",
                notes=tuple(notes),
                source=line.source,
                stated=values,
            )
        )
    return in_order(rows)


def _speedup(line: PublishedRow, reference: PublishedRow | None) -> Estimate | None:
    """As the table states it, or over the reference; None without one."""
    if line.speedup is not None:
        return single_value(line.speedup, "×")
    if reference is None or line.speed is None or reference.speed is None:
        return None
    return UNITY if line is reference else single_value(line.speed / reference.speed, "×")
