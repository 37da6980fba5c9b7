"""Rows for other programs, written one after the other: CSV, JSON, JSON Lines, Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import IO, Any, TextIO

from dpbench.analysis.csv_cells import inert
from dpbench.analysis.fields.field import Field, Plain
from dpbench.codec import encode
from dpbench.errors import UsageError

Rows = Iterable[Mapping[str, Plain]]


ROWS_PER_GROUP = 100_000


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
    """Write the rows as JSON objects, one per line."""
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


def write_parquet(
    file: IO[bytes], fields: Sequence[Field], rows: Iterable[Mapping[str, Plain]]
) -> None:
    """Typed columns, None as null; raises UsageError without pyarrow, OSError."""
    arrow, parquet = _pyarrow()
    types = {
        "text": arrow.string(),
        "integer": arrow.int64(),
        "number": arrow.float64(),
        "boolean": arrow.bool_(),
    }
    schema = arrow.schema(
        [arrow.field(f.key, types[f.kind], metadata={"description": f.meaning}) for f in fields]
    )
    left = iter(rows)
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(left, ROWS_PER_GROUP)):
            columns = [[row[field.key] for row in group] for field in fields]
            arrays = [
                arrow.array(column, field.type)
                for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            "--format parquet needs pyarrow, which is not installed; pip install 'dpbench[parquet]'"
        ) from None
    return pyarrow, pyarrow.parquet
