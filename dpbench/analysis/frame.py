"""Summaries and records as pandas data frames, for notebooks.

Columns have the type of their field, even with missing values: text (string), whole numbers
(Int64), floats (NaN is missing), booleans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat

import numpy as np
import pandas as pd

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.fields.field import FieldKind, Plain, read_row
from dpbench.analysis.fields.levels import LEVELS, TRIAL_IDENTITY, configuration_row
from dpbench.analysis.tidy import (
    RankWindow,
    collective_rows,
    rank_rows,
    samples_per_step,
    trial_rows,
    windows,
)
from dpbench.collectives import CollectiveRecord
from dpbench.records import TrialRecord

DTYPES: dict[FieldKind, str] = {
    "text": "string",
    "integer": "Int64",
    "number": "float64",
    "boolean": "boolean",
}


def to_frame(summaries: Iterable[ConfigurationSummary]) -> pd.DataFrame:
    """One row per configuration; columns are the keys of the JSON rows; None is missing."""
    return _frame("configuration", map(configuration_row, summaries))


def trial_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per trial; columns are the keys of the exported rows."""
    return _frame("trial", trial_rows(records))


def rank_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per rank of a trial; columns are the keys of the exported rows."""
    return _frame("rank", rank_rows(records))


def collective_frame(records: Iterable[CollectiveRecord]) -> pd.DataFrame:
    """One row per collective, backend, group size and message size."""
    return _frame("collective", collective_rows(records))


def step_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per step, window and rank; columns are the keys of the exported rows.

    It is built column by column, without making rows: about 60 bytes per step. Text is categorical,
    and whole numbers have 32 bits if that is enough.
    """
    found = [*windows(records)]
    lengths = np.array([len(one.window.step_seconds) for one in found], dtype=np.int64)
    total = int(lengths.sum())
    identities = _identities(found)
    columns: dict[str, object] = {
        field.key: _repeated([row[field.key] for row in identities], lengths, field.kind)
        for field in TRIAL_IDENTITY
    }
    columns["rank"] = _repeated([one.rank.rank for one in found], lengths, "integer")
    columns["window"] = _repeated([one.name for one in found], lengths, "text")
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns["step"] = (np.arange(total) - starts).astype(np.int32)
    seconds = chain.from_iterable(one.window.step_seconds for one in found)
    columns["seconds"] = np.fromiter(seconds, np.float64, total)
    columns["loss"] = np.fromiter(chain.from_iterable(map(_losses, found)), np.float64, total)
    samples = [samples_per_step(one.window) for one in found]
    columns["samples"] = _repeated(samples, lengths, "integer")
    return pd.DataFrame(columns, copy=False)


def _identities(found: Sequence[RankWindow]) -> list[dict[str, Plain]]:
    """Identity of each window's trial; the windows of one trial are consecutive."""
    rows: list[dict[str, Plain]] = []
    for place, one in enumerate(found):
        same = place > 0 and one.record is found[place - 1].record
        rows.append(rows[-1] if same else read_row(TRIAL_IDENTITY, one.record))
    return rows


def _repeated(values: Sequence[Plain], lengths: np.ndarray, kind: FieldKind) -> object:
    """Each value, repeated for every step of its window."""
    if kind == "text":
        return pd.Categorical(values).repeat(lengths)
    large = max((value for value in values if isinstance(value, int)), default=0) >= 2**31
    if None in values:
        return pd.array(values, dtype="Int64" if large else "Int32").repeat(lengths)
    return np.repeat(np.array(values, dtype=np.int64 if large else np.int32), lengths)


def _losses(one: RankWindow) -> Iterable[float]:
    return one.window.losses or repeat(np.nan, len(one.window.step_seconds))


def _frame(level: str, rows: Iterable[Mapping[str, Plain]]) -> pd.DataFrame:
    columns: dict[str, list[Plain]] = {field.key: [] for field in LEVELS[level]}
    for row in rows:
        for key, values in columns.items():
            values.append(row[key])
    return pd.DataFrame(
        {
            field.key: pd.array(columns[field.key], dtype=DTYPES[field.kind])
            for field in LEVELS[level]
        }
    )
