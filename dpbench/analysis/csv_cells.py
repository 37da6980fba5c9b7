"""Cells of a CSV file that a person wrote, and errors that name their lines."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbench.errors import StoreError
from dpbench.values import shorten

_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBER = re.compile(r"\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)
_NAME = re.compile(r"[^\W](?:[\w.+/ -]{0,38}[\w.+])?")
# Wider than any training speed or time, and far from where floats overflow.
_SMALLEST, _LARGEST = 1e-9, 1e15
LONGEST_PHRASE = 120


@dataclass(frozen=True, slots=True)
class CsvLine:
    """One line of the file: reads its cells, and reports the position of a bad one."""

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

    def name(self, column: str) -> str:
        if not _NAME.fullmatch(self.cells[column]):
            raise self.error(column, "a name of letters, digits and .+-_/ (40 at the most)")
        return self.cells[column]

    def phrase(self, column: str) -> str:
        """Any printable text that describes hardware or sources; may be empty."""
        text = self.cells[column]
        if not text.isprintable() or len(text) > LONGEST_PHRASE:
            raise self.error(column, f"printable text ({LONGEST_PHRASE} characters at the most)")
        return text

    def error(self, column: str, expected: str) -> StoreError:
        return StoreError(
            f"{self.path}, line {self.number}, column {column!r}: expected {expected}, "
            f"got {shorten(self.cells[column])}"
        )


def read_table(path: Path) -> tuple[list[str], Iterator[CsvLine]]:
    """The column names, each once, and the lines below; raises StoreError if the file is no
    table."""
    lines = _lines(path)
    header = next(lines, None)
    if header is None:
        raise StoreError(f"{path} is empty: expected a header line of column names")
    names = header[1]
    if len(names) == 1 and (other := next((c for c in ";\t|" if c in names[0]), None)):
        raise StoreError(f"{path}, line 1: expected columns separated by commas, got {other!r}")
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise StoreError(f"{path}, line 1: expected each column once, got {doubled[0]!r} twice")
    return names, _rows(path, names, lines)


def _rows(
    path: Path, names: Sequence[str], lines: Iterator[tuple[int, list[str]]]
) -> Iterator[CsvLine]:
    empty = True
    for number, cells in lines:
        if len(cells) != len(names):
            raise StoreError(
                f"{path}, line {number}: expected {len(names)} values "
                f"(column {names[min(len(cells), len(names) - 1)]!r}), got {len(cells)}"
            )
        empty = False
        yield CsvLine(path, number, dict(zip(names, cells, strict=True)))
    if empty:
        raise StoreError(f"{path}, line 2: expected a row of values, got the end of the file")


def one_of(path: Path, names: Sequence[str], choices: Sequence[str]) -> str:
    found = [name for name in choices if name in names]
    if len(found) != 1:
        raise StoreError(
            f"{path}, line 1: expected exactly one column out of {', '.join(choices)}, "
            f"got {', '.join(found) or list(names)}"
        )
    return found[0]


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells without surrounding spaces; empty lines are skipped."""
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
