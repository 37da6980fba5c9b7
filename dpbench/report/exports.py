"""Rows of one level of detail for other programs, in any format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dpbench import store, units
from dpbench.analysis import frames
from dpbench.analysis.levels import LEVELS
from dpbench.errors import UnknownName, UsageError
from dpbench.records.trial import TrialRecord
from dpbench.report.formats import csv_text, json_text, table_of_frame, write_parquet
from dpbench.report.tables import parse_keys
from dpbench.report.terminal import write_table

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = {
    ".csv": "csv",
    ".json": "json",
    ".md": "markdown",
    ".tex": "latex",
    ".html": "html",
    ".parquet": "parquet",
}
"""Endings of the files that `report --output` writes rows into, and their formats."""
EXPORT_FORMATS = tuple(SUFFIXES.values())


def check_level(name: str) -> str:
    """Returns the name; raises UnknownName if there is no such level."""
    if name not in LEVELS:
        raise UnknownName("level", name, LEVELS)
    return name


def level_frame(path: Path, level: str) -> tuple[pd.DataFrame, tuple[str, ...], tuple[str, ...]]:
    """The rows of a level below the configuration, with notes on trials that have none, and
    warnings about data that could not be read. Raises StoreError."""
    if level == "collective":
        found = store.load_collectives(path)
        return frames.collective_frame(found.records), (), found.warnings
    readers: dict[str, Callable[[Iterable[TrialRecord]], pd.DataFrame]] = {
        "trial": frames.trial_frame,
        "rank": frames.rank_frame,
        "step": frames.step_frame,
    }
    sweep = store.load(path)
    notes = _without_rows(level, sweep.records)
    return readers[level](sweep.records), notes, sweep.warnings


def _without_rows(level: str, records: Sequence[TrialRecord]) -> tuple[str, ...]:
    last = {record.trial: record for record in records}
    empty = sum(not record.ranks for record in last.values())
    if level == "trial" or not empty:
        return ()
    trials = units.counted(len(last), "trial")
    return (f"{empty} of {trials} measured nothing and have no row; --level trial has the reason",)


def keep_columns(frame: pd.DataFrame, columns: str | None) -> pd.DataFrame:
    """The named columns in their order; raises UnknownName or UsageError."""
    if columns is None:
        return frame
    return frame[list(parse_keys(columns, map(str, frame.columns)))]


def write_rows(frame: pd.DataFrame, format: str, file: IO[bytes], *, caption: str = "") -> None:
    """Writes the rows; raises UsageError for Parquet without pyarrow."""
    if format == "parquet":
        write_parquet(frame, file)
    else:
        file.write(rows_text(frame, format, caption=caption).encode())


def rows_text(frame: pd.DataFrame, format: str, *, caption: str = "") -> str:
    """The rows as text in any format but Parquet."""
    if format == "parquet":
        raise UsageError("--format parquet is not text; name a file: --output rows.parquet")
    if format in ("csv", "json"):
        return csv_text(frame) if format == "csv" else json_text(frame)
    return write_table(table_of_frame(frame, caption), format) + "\n"
