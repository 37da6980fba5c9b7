"""Rows for other programs, of any level of detail, as CSV and JSON.

Texts may come from records, so none of them is a formula in a spreadsheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench import store, units
from dpbench.errors import UsageError
from dpbench.records.trial import TrialRecord
from dpbench.report.answer import json_text

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_text(frame: pd.DataFrame) -> str:
    """A header of keys and one line per row; missing values are empty. An apostrophe stands before
    every text that a spreadsheet would compute."""
    from pandas.api.types import is_numeric_dtype

    def inert(value: Any) -> Any:
        is_formula = isinstance(value, str) and value.startswith(_FORMULA)
        return f"'{value}" if is_formula else value

    # Only the categories of a categorical column are seen; millions of steps share them.
    texts = {
        name: column.map(inert, na_action="ignore")
        for name, column in frame.items()
        if not is_numeric_dtype(column.dtype)
    }
    return str(frame.assign(**texts).to_csv(index=False, lineterminator="\n"))


def frame_json(frame: pd.DataFrame) -> str:
    """An array with one object per row; missing values are null and infinity is the text "inf"."""
    plain = frame.astype(object).where(frame.notna(), None)
    plain = plain.replace({math.inf: "inf", -math.inf: "-inf"})
    return json_text(plain.to_dict("records"))


def level_frame(path: Path, level: str) -> tuple[pd.DataFrame, tuple[str, ...], tuple[str, ...]]:
    """The rows of a level below the configuration, with notes on trials that have none, and
    warnings about data that could not be read. Raises StoreError."""
    from dpbench.analysis import frames

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


def frame_text(frame: pd.DataFrame, format: str) -> str:
    """The rows for programs; raises UsageError for a format of documents, which hold no rows of
    trials, ranks or steps."""
    if format not in ("csv", "json"):
        raise UsageError(f"{format} has rows of configurations only; expected csv or json")
    return csv_text(frame) if format == "csv" else frame_json(frame)
