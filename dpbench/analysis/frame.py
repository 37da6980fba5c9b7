"""Summaries and records as pandas data frames for notebooks, and as tidy rows of one observation.

Columns have the type of their field, even with missing values: text (string), whole numbers
(Int64), floats (NaN is missing), booleans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpbench.analysis.communication.timings import measured
from dpbench.analysis.configuration import ConfigurationSummary, by_configuration
from dpbench.analysis.fields.field import Field, FieldKind, Plain, read_row
from dpbench.analysis.fields.levels import (
    LEVELS,
    RANK_FIELDS,
    SIZE_FIELDS,
    SPEC_FIELDS,
    TIMED,
    TRIAL_FIELDS,
    TRIAL_IDENTITY,
    WITHOUT_SYNC,
    configuration_fields,
    configuration_row,
)
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import RankMeasurement, TrialRecord, Window

DTYPES: dict[FieldKind, str] = {
    "text": "string",
    "integer": "Int64",
    "number": "float64",
    "boolean": "boolean",
}


def to_frame(summaries: Iterable[ConfigurationSummary]) -> pd.DataFrame:
    """One row per configuration; columns are the keys of the JSON rows; None is missing."""
    rows = tuple(summaries)
    return _frame(configuration_fields(rows), map(configuration_row, rows))


def trial_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per trial; columns are the keys of the exported rows."""
    return _frame(LEVELS["trial"], trial_rows(records))


def rank_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per rank of a trial; columns are the keys of the exported rows."""
    return _frame(LEVELS["rank"], rank_rows(records))


def collective_frame(records: Iterable[CollectiveRecord]) -> pd.DataFrame:
    """One row per collective, backend, group size and message size."""
    return _frame(LEVELS["collective"], collective_rows(records))


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


def _frame(fields: Sequence[Field], rows: Iterable[Mapping[str, Plain]]) -> pd.DataFrame:
    columns: dict[str, list[Plain]] = {field.key: [] for field in fields}
    for row in rows:
        for key, values in columns.items():
            values.append(row[key])
    return pd.DataFrame(
        {field.key: pd.array(columns[field.key], dtype=DTYPES[field.kind]) for field in fields}
    )


Rows = Iterator[dict[str, Plain]]


class RankWindow(NamedTuple):
    """The steps of one window on one rank."""

    record: TrialRecord
    rank: RankMeasurement
    name: str
    window: Window


def final_records(records: Iterable[TrialRecord]) -> Iterator[TrialRecord]:
    """The last record of each trial, by configuration in the order they were first run."""
    for repetitions in by_configuration(records).values():
        yield from repetitions


def trial_rows(records: Iterable[TrialRecord]) -> Rows:
    """One row per trial, with the keys of its level."""
    for record in final_records(records):
        yield read_row(TRIAL_FIELDS, record)


def rank_rows(records: Iterable[TrialRecord]) -> Rows:
    """One row per rank, with the keys of its level; none for trials without ranks."""
    for record in final_records(records):
        identity = read_row(TRIAL_IDENTITY, record)
        for rank in record.ranks:
            yield {**identity, **read_row(RANK_FIELDS, rank)}


def step_rows(records: Iterable[TrialRecord]) -> Rows:
    """One row per step, rank and window, with the keys of its level."""
    identity: dict[str, Plain] = {}
    last: TrialRecord | None = None
    for record, rank, name, window in windows(records):
        if record is not last:
            identity, last = read_row(TRIAL_IDENTITY, record), record
        shared = {**identity, "rank": rank.rank, "window": name}
        samples = samples_per_step(window)
        losses = window.losses or (None,) * len(window.step_seconds)
        for step, (seconds, loss) in enumerate(zip(window.step_seconds, losses, strict=True)):
            yield {**shared, "step": step, "seconds": seconds, "loss": loss, "samples": samples}


def collective_rows(records: Iterable[CollectiveRecord]) -> Rows:
    """One row per message size, with the keys of its level.

    A collective without any measurement has one row, without a size.
    """
    for one in measured(records):
        shared = read_row(SPEC_FIELDS, one)
        for size in one.sizes:
            yield {**shared, **read_row(SIZE_FIELDS, size)}
        if not one.sizes:
            yield {**shared, **dict.fromkeys(field.key for field in SIZE_FIELDS)}


def windows(records: Iterable[TrialRecord]) -> Iterator[RankWindow]:
    """Every window with timed steps."""
    for record in final_records(records):
        for rank in record.ranks:
            yield RankWindow(record, rank, TIMED, rank.timed)
            if rank.without_sync is not None:
                yield RankWindow(record, rank, WITHOUT_SYNC, rank.without_sync)


def samples_per_step(window: Window) -> int | None:
    """Samples of each step in a window; None if its steps cannot all have the same number."""
    steps = len(window.step_seconds)
    return window.samples // steps if steps and window.samples % steps == 0 else None
