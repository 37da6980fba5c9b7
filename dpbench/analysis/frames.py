"""Results as pandas data frames, one for each level of detail.

Columns have the type of their metric, even with missing values: text (string), whole numbers
(Int64), floats (NaN is missing), booleans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from dpbench.analysis.collectives import COLLECTIVE_METRICS, collective_rows
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.metric import Metric, Reader, Value, ValueKind
from dpbench.analysis.metrics import ROW_METRICS, TRIAL_METRICS
from dpbench.analysis.repetitions import by_configuration
from dpbench.analysis.rows import Row
from dpbench.analysis.throughput import mean_step_seconds
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import RankMeasurement, TrialRecord

DTYPES: dict[ValueKind, str] = {
    "text": "string",
    "integer": "Int64",
    "number": "float64",
    "boolean": "boolean",
}
IDENTITY_METRICS = tuple(
    metric
    for metric in TRIAL_METRICS
    if metric.key
    in ("trial_id", "implementation", "backend", "group_size", "batch_size", "repetition", "status")
)
"""Metrics with which rows of ranks and steps begin."""


def _column(
    key: str, kind: ValueKind = "number", read: Callable[[Any], Value] | None = None
) -> Metric:
    return Metric(key=key, kind=kind, reader=Reader(of_row=read or attrgetter(key)))


def _phase(key: str, phases: str, seconds: str) -> Metric:
    """The mean of a phase over the instrumented steps of a rank."""

    def read(rank: RankMeasurement) -> float | None:
        steps = getattr(getattr(rank, phases), seconds, ())
        return fmean(steps) if steps else None

    return _column(key, read=read)


def _mean_step(key: str, name: str) -> Metric:
    """The mean step of a window of a rank."""

    def read(rank: RankMeasurement) -> float | None:
        window = getattr(rank, name)
        return mean_step_seconds(window) if window and window.step_seconds else None

    return _column(key, read=read)


RANK_METRICS = (
    _column("rank", "integer"),
    _column("pid", "integer"),
    _column("device", "text"),
    _column("setup_seconds"),
    _column("comm_init_seconds"),
    _column("group_class", "text"),
    _column("warmup_steps", "integer"),
    _column("timed_steps", "integer", lambda rank: len(rank.timed.step_seconds)),
    _column("timed_seconds", read=attrgetter("timed.seconds")),
    _column("samples", "integer", attrgetter("timed.samples")),
    _column("cpu_seconds", read=attrgetter("timed.cpu_seconds")),
    _mean_step("step_seconds", "timed"),
    _mean_step("step_without_sync_seconds", "without_sync"),
    _phase("data_seconds", "phases", "data_seconds"),
    _phase("forward_seconds", "phases", "forward_seconds"),
    _phase("backward_seconds", "phases", "backward_seconds"),
    _phase("backward_without_sync_seconds", "phases_without_sync", "backward_seconds"),
    _phase("optimizer_seconds", "phases", "optimizer_seconds"),
    _column("peak_host_memory_bytes", "integer"),
    _column("peak_device_memory_bytes", "integer"),
    _column("peak_reserved_memory_bytes", "integer"),
    _column("reduced_bytes_per_step", "integer"),
    _column("collectives_per_step"),
    _column("sample_checksum", "text"),
    _column("initial_checksum", "text"),
    _column("final_checksum", "text"),
)


def to_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """One row per configuration, with the ends of intervals; None is missing. A key never changes
    its meaning: `images_per_second` keeps its name whatever the `item` is."""
    return _frame(ROW_METRICS.values(), [*rows])


def trial_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per trial."""
    trials = [_trial_values(record, TRIAL_METRICS) for record in final_records(records)]
    return _frame(TRIAL_METRICS, trials, has_ends=False)


def rank_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per rank of a trial; steps and phases are means."""
    lines = [
        _trial_values(record)
        | {one.key: one.reader.of_row(rank) for one in RANK_METRICS if one.reader.of_row}
        for record in final_records(records)
        for rank in record.ranks
    ]
    return _frame((*IDENTITY_METRICS, *RANK_METRICS), lines)


def step_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per step of each window (timed, without_sync) of each rank.

    It is built a window at a time, as a sweep has millions of steps. Text is categorical.
    """
    steps = [
        (record, rank.rank, name, window)
        for record in final_records(records)
        for rank in record.ranks
        for name, window in (("timed", rank.timed), ("without_sync", rank.without_sync))
        if window is not None and window.step_seconds
    ]
    windows = [window for *_, window in steps]
    frame = _frame(IDENTITY_METRICS, [_trial_values(record) for record, *_ in steps])
    frame["rank"] = pd.array([rank for _, rank, *_ in steps], dtype="Int64")
    frame["window"] = pd.array([name for _, _, name, _ in steps], dtype="string")
    frame = frame.astype(dict.fromkeys(frame.select_dtypes("string"), "category"))
    lengths = np.array([len(window.step_seconds) for window in windows], dtype=np.int64)
    frame = frame.loc[frame.index.repeat(lengths)].reset_index(drop=True)
    frame["step"] = np.concatenate([np.arange(count) for count in lengths] or [lengths])
    frame["seconds"] = np.concatenate([window.step_seconds for window in windows] or [()])
    frame["loss"] = np.concatenate(
        [window.losses or np.full(len(window.step_seconds), np.nan) for window in windows] or [()]
    )
    return frame


def collective_frame(records: Iterable[CollectiveRecord]) -> pd.DataFrame:
    """One row per collective, backend, group size and message size; a collective without any
    measurement has one row, without a size."""
    return _frame(COLLECTIVE_METRICS, collective_rows(records))


def final_records(records: Iterable[TrialRecord]) -> Iterator[TrialRecord]:
    """The last record of each trial, by configuration in the order they were first run."""
    for repetitions in by_configuration(records).values():
        yield from repetitions


def _trial_values(
    record: TrialRecord, metrics: Iterable[Metric] = IDENTITY_METRICS
) -> dict[str, Value]:
    return {one.key: one.reader.of_trial(record) for one in metrics if one.reader.of_trial}


def _frame(
    metrics: Iterable[Metric], lines: Sequence[Any], *, has_ends: bool = True
) -> pd.DataFrame:
    """A column for each metric, and with `has_ends` two more for the ends of its interval; a row
    for each line, which has values by key."""
    columns = {}
    for metric in metrics:
        values = [line[metric.key] for line in lines]
        numbers = [value.value if isinstance(value, Estimate) else value for value in values]
        columns[metric.key] = pd.array(numbers, dtype=DTYPES[metric.kind])
        for end in ("low", "high") if metric.has_interval and has_ends else ():
            ends = [getattr(v, end) if isinstance(v, Estimate) else None for v in values]
            columns[f"{metric.key}_{end}"] = pd.array(ends, dtype="float64")
    return pd.DataFrame(columns)
