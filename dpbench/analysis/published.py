"""Numbers that someone else published, from a CSV file: single values without an interval.

Two forms, told apart by their columns:
  throughput  group_size, images_per_second, backend, batch_size
  time        group_size, one of seconds, minutes, hours: a fixed amount of work (strong scaling);
              backend and batch_size may be missing
`gpus` may stand for `group_size`; `implementation` (default "published") and `item` (default
"images") are optional; columns named *_claimed are shown as claims. Other columns are not read,
and a note says so. Everything else is an error that names the line.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpbench.analysis.configuration import ConfigurationSummary, in_order, with_note
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.scaling import BASELINE, Kind, efficiency, speedup
from dpbench.errors import StoreError
from dpbench.records import Status

SECONDS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
COUNTS = ("group_size", "gpus")
OPTIONAL = ("implementation", "item", "backend", "batch_size")
CLAIMED = "_claimed"

_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_TEXT = re.compile(r"[^\W](?:[\w.+/ -]{0,38}[\w.+])?")
# Wider than any training speed or time, and far from where floats overflow.
_SMALLEST, _LARGEST = 1e-9, 1e15


@dataclass(frozen=True, kw_only=True, slots=True)
class _Columns:
    """What the header says."""

    count: str
    value: str
    kind: Kind
    known: tuple[str, ...]
    claims: tuple[str, ...]
    unread: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the file: reads its cells, and says where a bad one stands."""

    path: Path
    number: int
    cells: dict[str, str]

    def whole(self, column: str) -> int:
        text = self.cells[column]
        if not _WHOLE.fullmatch(text) or int(text) < 1:
            raise self.error(column, "a whole number >= 1")
        return int(text)

    def positive(self, column: str) -> float:
        text = self.cells[column]
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not _SMALLEST <= value <= _LARGEST:
            raise self.error(column, f"a number between {_SMALLEST:g} and {_LARGEST:g}")
        return value

    def text(self, column: str) -> str:
        if not _TEXT.fullmatch(self.cells[column]):
            raise self.error(column, "a name of letters, digits and .+-_/ (40 at the most)")
        return self.cells[column]

    def error(self, column: str, expected: str) -> StoreError:
        got = self.cells[column]
        shown = got if len(got) <= 40 else f"{got[:39]}…"
        return StoreError(
            f"{self.path}, line {self.number}, column {column!r}: expected {expected}, "
            f"got {shown!r}"
        )


def from_csv(path: Path) -> tuple[ConfigurationSummary, ...]:
    """Reads a file of published numbers; raises StoreError if it is not exactly that."""
    lines = _lines(path)
    header = next(lines, None)
    if header is None:
        raise StoreError(f"{path} is empty: expected a header line of column names")
    names = header[1]
    columns = _understand(path, names)
    rows: dict[tuple[object, ...], tuple[int, ConfigurationSummary]] = {}
    for number, cells in lines:
        if len(cells) != len(names):
            raise StoreError(
                f"{path}, line {number}: expected {len(names)} values "
                f"(column {names[min(len(cells), len(names) - 1)]!r}), got {len(cells)}"
            )
        line = _Line(path, number, dict(zip(names, cells, strict=True)))
        row = _row(line, columns)
        key = (row.implementation, row.backend, row.group_size, row.batch_size)
        if key in rows:
            raise line.error(
                columns.count, f"each configuration once ({row.label} is on line {rows[key][0]})"
            )
        rows[key] = (number, row)
    if not rows:
        raise StoreError(f"{path}, line 2: expected a row of values, got the end of the file")
    return in_order(_with_scaling([row for _, row in rows.values()], columns))


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells without surrounding spaces; empty lines are passed over."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for cells in reader:
                if cells:
                    yield reader.line_num, [cell.strip() for cell in cells]
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is not a CSV file in UTF-8: {error}") from None


def _understand(path: Path, names: Sequence[str]) -> _Columns:
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise StoreError(f"{path}, line 1: expected each column once, got {doubled[0]!r} twice")
    count = _one_of(path, names, COUNTS)
    value = _one_of(path, names, ("images_per_second", *SECONDS))
    kind: Kind = "time" if value in SECONDS else "throughput"
    for required in () if kind == "time" else ("backend", "batch_size"):
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


def _one_of(path: Path, names: Sequence[str], choices: Sequence[str]) -> str:
    found = [name for name in choices if name in names]
    if len(found) != 1:
        raise StoreError(
            f"{path}, line 1: expected exactly one column out of {', '.join(choices)}, "
            f"got {', '.join(found) or list(names)}"
        )
    return found[0]


def _row(line: _Line, columns: _Columns) -> ConfigurationSummary:
    def text(column: str, default: str) -> str:
        return line.text(column) if column in columns.known else default

    group_size = line.whole(columns.count)
    batch_size = line.whole("batch_size") if "batch_size" in columns.known else None
    item = text("item", "images")
    value = line.positive(columns.value)
    timed = columns.kind == "time"
    row = ConfigurationSummary(
        implementation=text("implementation", "published"),
        backend=line.text("backend") if "backend" in columns.known else None,
        group_size=group_size,
        batch_size=batch_size,
        # A published time is of fixed work, but whether its batch was per replica is not said.
        global_batch_size=None if timed or batch_size is None else batch_size * group_size,
        item=item,
        status=Status.COMPLETED,
        throughput=None if timed else LogMean.of_single(value).estimate(f"{item}/s"),
        duration=_duration(value * SECONDS[columns.value]) if timed else None,
        repetitions=1,
        claims=tuple((name, line.text(name)) for name in columns.claims),
    )
    if columns.unread:
        row = with_note(row, f"columns not read: {', '.join(columns.unread)}")
    return row


def _duration(seconds: float) -> Estimate:
    return LogMean.of_single(seconds).estimate("s")


def _with_scaling(
    rows: Sequence[ConfigurationSummary], columns: _Columns
) -> list[ConfigurationSummary]:
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
