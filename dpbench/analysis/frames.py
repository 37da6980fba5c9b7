"""Results as pandas data frames, one per level of detail, and as tidy rows of one observation.

Columns have the type of their field, even with missing values: text (string), whole numbers
(Int64), floats (NaN is missing), booleans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpbench.analysis.communication.timings import measured
from dpbench.analysis.configuration import ConfigurationSummary, by_configuration
from dpbench.analysis.fields import Field, FieldKind, Plain, read_row
from dpbench.analysis.levels import (
    LEVELS,
    RANK_FIELDS,
    SIZE_FIELDS,
    SPEC_FIELDS,
    TIMED,
    TRIAL_FIELDS,
    TRIAL_IDENTITY,
    WITHOUT_SYNC,
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
Rows = Iterator[dict[str, Plain]]


def to_frame(summaries: Iterable[ConfigurationSummary]) -> pd.DataFrame:
    """One row per configuration; columns are the keys of the JSON rows; None is missing."""
    return _frame(LEVELS["configuration"], map(configuration_row, summaries))


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

    It is built column by column, as a sweep has millions of steps. Text is categorical.
    """
    identities, found = [], []
    for record in final_records(records):
        identity = read_row(TRIAL_IDENTITY, record)
        for one in windows([record]):
            identities.append(identity)
            found.append(one)
    lengths = np.array([len(one.window.step_seconds) for one in found], dtype=np.int64)
    columns: dict[str, object] = {
        field.key: pd.Categorical([row[field.key] for row in identities]).repeat(lengths)
        if field.kind == "text"
        else np.repeat(np.array([row[field.key] for row in identities], dtype=np.int64), lengths)
        for field in TRIAL_IDENTITY
    }
    columns["rank"] = np.repeat(np.array([one.rank.rank for one in found], np.int64), lengths)
    columns["window"] = pd.Categorical([one.name for one in found]).repeat(lengths)
    columns["step"] = np.concatenate([np.arange(n) for n in lengths] or [lengths])
    columns["seconds"] = np.concatenate([one.window.step_seconds for one in found] or [()])
    columns["loss"] = np.concatenate(
        [one.window.losses or np.full(len(one.window.step_seconds), np.nan) for one in found]
        or [()]
    )
    samples = pd.array([samples_per_step(one.window) for one in found], dtype="Int64")
    columns["samples"] = samples.repeat(lengths)
    return pd.DataFrame(columns, copy=False)


def _frame(fields: Sequence[Field], rows: Iterable[Mapping[str, Plain]]) -> pd.DataFrame:
    table = list(rows)
    return pd.DataFrame(
        {
            field.key: pd.array([row[field.key] for row in table], dtype=DTYPES[field.kind])
            for field in fields
        }
    )


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
    for record in final_records(records):
        identity = read_row(TRIAL_IDENTITY, record)
        for _, rank, name, window in windows([record]):
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
