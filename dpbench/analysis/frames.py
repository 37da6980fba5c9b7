"""Results as pandas data frames, one for each level of detail.

Columns have the type of their metric, even with missing values: text (string), whole numbers
(Int64), floats (NaN is missing), booleans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, get_type_hints

import numpy as np
import pandas as pd

from dpbench.analysis.collectives import COLLECTIVE_METRICS, collective_rows
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.metric import Metric, ValueType
from dpbench.analysis.metrics import ROW_METRICS, TRIAL_METRICS
from dpbench.analysis.repetitions import by_configuration
from dpbench.analysis.rows import Row
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import Phases, RankMeasurement, TrialRecord, Window

DTYPES: dict[ValueType, str] = {
    "text": "string",
    "integer": "Int64",
    "number": "float64",
    "boolean": "boolean",
}
IDENTITY = ("trial_id", "implementation", "backend", "group_size", "batch_size", "repetition")
IDENTITY_METRICS = tuple(metric for metric in TRIAL_METRICS if metric.key in (*IDENTITY, "status"))
"""Metrics with which rows of ranks and steps begin."""
SCALARS: dict[Any, ValueType] = {str: "text", int: "integer", float: "number"}
RANK_FIELDS = {
    name: value_type
    for name, hint in get_type_hints(RankMeasurement).items()
    for scalar, value_type in SCALARS.items()
    if hint in (scalar, scalar | None)
}
"""Fields of ranks that are single values."""
RANK_SUMS: dict[str, ValueType] = {
    "timed_steps": "integer",
    "samples": "integer",
    "timed_seconds": "number",
    "cpu_seconds": "number",
    "step_seconds": "number",
    "step_without_sync_seconds": "number",
    "data_seconds": "number",
    "forward_seconds": "number",
    "backward_seconds": "number",
    "optimizer_seconds": "number",
    "backward_without_sync_seconds": "number",
}
"""Sums and means over the steps of a rank."""


def to_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """One row per configuration, with the ends of intervals; None is missing. A key never changes
    its meaning: `images_per_second` keeps its name whatever the `item` is."""
    return _with_ends(ROW_METRICS.values(), [*rows])


def collective_frame(records: Iterable[CollectiveRecord]) -> pd.DataFrame:
    """One row per collective, backend, group size and message size; a collective without any
    measurement has one row, without a size."""
    return _with_ends(COLLECTIVE_METRICS, collective_rows(records))


def trial_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per trial."""
    types = {metric.key: metric.value_type for metric in TRIAL_METRICS}
    return _frame(types, [_trial(record, TRIAL_METRICS) for record in final_records(records)])


def rank_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per rank of a trial; steps and phases are means."""
    lines = [
        _trial(record) | _rank(rank) for record in final_records(records) for rank in record.ranks
    ]
    types = {metric.key: metric.value_type for metric in IDENTITY_METRICS}
    return _frame({**types, **RANK_FIELDS, **RANK_SUMS}, lines)


def step_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per step of each window (timed, without_sync) of each rank.

    It is built a window at a time, as a sweep has millions of steps. Text is categorical.
    """
    types: dict[str, ValueType] = {metric.key: metric.value_type for metric in IDENTITY_METRICS}
    types |= {"rank": "integer", "window": "text"}
    windows, lines = [], []
    for record in final_records(records):
        for rank in record.ranks:
            for name in ("timed", "without_sync"):
                window = getattr(rank, name)
                if window is not None and window.step_seconds:
                    windows.append(window)
                    lines.append(_trial(record) | {"rank": rank.rank, "window": name})
    frame = _frame(types, lines)
    frame = frame.astype(dict.fromkeys(frame.select_dtypes("string"), "category"))
    lengths = np.array([len(window.step_seconds) for window in windows], dtype=np.int64)
    frame = frame.loc[frame.index.repeat(lengths)].reset_index(drop=True)
    frame["step"] = np.concatenate([np.arange(count) for count in lengths] or [lengths])
    frame["seconds"] = np.concatenate([window.step_seconds for window in windows] or [()])
    frame["loss"] = np.concatenate(
        [window.losses or np.full(len(window.step_seconds), np.nan) for window in windows] or [()]
    )
    return frame


def final_records(records: Iterable[TrialRecord]) -> Iterator[TrialRecord]:
    """The last record of each trial, by configuration in the order they were first run."""
    for repetitions in by_configuration(records).values():
        yield from repetitions


def _trial(record: TrialRecord, metrics: Iterable[Metric] = IDENTITY_METRICS) -> dict[str, Any]:
    return {metric.key: metric.in_trial(record) for metric in metrics}


def _rank(rank: RankMeasurement) -> dict[str, Any]:
    def mean_step(window: Window | None) -> float | None:
        return window.mean_step_seconds if window and window.step_seconds else None

    def mean_phase(phases: Phases | None, name: str) -> float | None:
        seconds = getattr(phases, name, ())
        return fmean(seconds) if seconds else None

    return {
        **{name: getattr(rank, name) for name in RANK_FIELDS},
        "timed_steps": len(rank.timed.step_seconds),
        "samples": rank.timed.samples,
        "timed_seconds": rank.timed.seconds,
        "cpu_seconds": rank.timed.cpu_seconds,
        "step_seconds": mean_step(rank.timed),
        "step_without_sync_seconds": mean_step(rank.without_sync),
        "data_seconds": mean_phase(rank.phases, "data_seconds"),
        "forward_seconds": mean_phase(rank.phases, "forward_seconds"),
        "backward_seconds": mean_phase(rank.phases, "backward_seconds"),
        "optimizer_seconds": mean_phase(rank.phases, "optimizer_seconds"),
        "backward_without_sync_seconds": mean_phase(rank.phases_without_sync, "backward_seconds"),
    }


def _with_ends(metrics: Iterable[Metric], rows: Sequence[Any]) -> pd.DataFrame:
    """A column for each metric of the rows, and two more for the ends of its interval."""
    types: dict[str, ValueType] = {}
    lines: list[dict[str, Any]] = [{} for _ in rows]
    for metric in metrics:
        types[metric.key] = metric.value_type
        if metric.has_interval:
            types |= dict.fromkeys((f"{metric.key}_low", f"{metric.key}_high"), metric.value_type)
        for line, row in zip(lines, rows, strict=True):
            value = row[metric.key]
            line[metric.key] = value.value if isinstance(value, Estimate) else value
            if isinstance(value, Estimate):
                line |= {f"{metric.key}_low": value.low, f"{metric.key}_high": value.high}
    return _frame(types, lines)


def _frame(types: Mapping[str, ValueType], lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A column for each key, and a row for each line, which has values by key."""
    return pd.DataFrame(
        {
            key: pd.array([line.get(key) for line in lines], dtype=DTYPES[value_type])
            for key, value_type in types.items()
        }
    )
