"""Rows as a Parquet file, in pieces that fit in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import IO, Any

from dpbench.analysis.fields.field import Field, Plain
from dpbench.errors import UsageError

ROWS_PER_GROUP = 100_000


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
