"""Rows of one level of detail for other programs, in any format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench import store, units
from dpbench.analysis import frames
from dpbench.records.trial import TrialRecord
from dpbench.report.formats import csv_text, json_text, table_of_frame
from dpbench.report.tables import parse_keys
from dpbench.report.terminal import write_table

if TYPE_CHECKING:
    import pandas as pd


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
    last = {record.trial: record for record in sweep.records}
    empty = sum(not record.ranks for record in last.values())
    trials = units.counted(len(last), "trial")
    note = f"{empty} of {trials} measured nothing and have no row; --level trial has the reason"
    notes = (note,) if empty and level != "trial" else ()
    return readers[level](sweep.records), notes, sweep.warnings


def keep_columns(frame: pd.DataFrame, columns: str | None) -> pd.DataFrame:
    """The named columns in their order; raises UnknownName or UsageError."""
    if columns is None:
        return frame
    return frame[list(parse_keys(columns, map(str, frame.columns)))]


def frame_text(frame: pd.DataFrame, format: str) -> str:
    """The rows in any format but that of terminals."""
    writers = {"csv": csv_text, "json": json_text}
    if format in writers:
        return writers[format](frame)
    return f"{write_table(table_of_frame(frame), format)}\n"
