"""Rows for other programs, written one after the other: CSV, JSON, JSON Lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TextIO

from dpbench.analysis.csv_cells import inert
from dpbench.analysis.fields.field import Plain
from dpbench.codec import encode

Rows = Iterable[Mapping[str, Plain]]


def write_csv(file: TextIO, keys: Sequence[str], rows: Rows) -> None:
    """A header of keys, a line a row; what is missing is empty, and no text is a formula."""
    writer = csv.DictWriter(file, keys, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: inert(value) for key, value in row.items()} for row in rows)


def write_json(file: TextIO, keys: Sequence[str], rows: Rows) -> None:
    """An array with an object for each row; infinity and NaN are strings, as in the records."""
    lead = "[\n "
    for row in rows:
        file.write(f"{lead}{_object(keys, row, indent=1)}")
        lead = ",\n "
    file.write("[]\n" if lead == "[\n " else "\n]\n")


def write_json_lines(file: TextIO, keys: Sequence[str], rows: Rows) -> None:
    """The same objects, one on each line."""
    for row in rows:
        file.write(f"{_object(keys, row)}\n")


WRITERS: dict[str, Callable[[TextIO, Sequence[str], Rows], None]] = {
    "csv": write_csv,
    "json": write_json,
    "jsonl": write_json_lines,
}


def _object(keys: Sequence[str], row: Mapping[str, Plain], indent: int | None = None) -> str:
    plain = {key: encode(row[key]) for key in keys}
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, indent=indent)
    return text if indent is None else text.replace("\n", "\n ")
