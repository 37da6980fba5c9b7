"""Results as pandas data frames, one for each level of detail.

Columns have the type of their metric, even with missing values: text (string), whole numbers
(Int64), floats (NaN is missing), booleans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from dpbench.analysis.collectives import COLLECTIVE_METRICS, collective_rows
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.metric import Metric, ValueKind
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
IDENTITY = ("trial_id", "implementation", "backend", "group_size", "batch_size", "repetition")
IDENTITY_METRICS = tuple(metric for metric in TRIAL_METRICS if metric.key in (*IDENTITY, "status"))
"""Metrics with which rows of ranks and steps begin."""
ReadRank = Callable[[RankMeasurement], Any]


def _phase(phases: str, seconds: str) -> ReadRank:
    """Reads the mean of a phase over the instrumented steps of a rank."""

    def read(rank: RankMeasurement) -> float | None:
        steps = getattr(getattr(rank, phases), seconds, ())
        return fmean(steps) if steps else None

    return read


def _mean_step(name: str) -> ReadRank:
    """Reads the mean step of a window of a rank."""

    def read(rank: RankMeasurement) -> float | None:
        window = getattr(rank, name)
        return mean_step_seconds(window) if window and window.step_seconds else None

    return read


RANK_COLUMNS: dict[str, tuple[ValueKind, ReadRank]] = {
    "rank": ("integer", attrgetter("rank")),
    "pid": ("integer", attrgetter("pid")),
    "device": ("text", attrgetter("device")),
    "setup_seconds": ("number", attrgetter("setup_seconds")),
    "comm_init_seconds": ("number", attrgetter("comm_init_seconds")),
    "group_class": ("text", attrgetter("group_class")),
    "warmup_steps": ("integer", attrgetter("warmup_steps")),
    "timed_steps": ("integer", lambda rank: len(rank.timed.step_seconds)),
    "timed_seconds": ("number", attrgetter("timed.seconds")),
    "samples": ("integer", attrgetter("timed.samples")),
    "cpu_seconds": ("number", attrgetter("timed.cpu_seconds")),
    "step_seconds": ("number", _mean_step("timed")),
    "step_without_sync_seconds": ("number", _mean_step("without_sync")),
    "data_seconds": ("number", _phase("phases", "data_seconds")),
    "forward_seconds": ("number", _phase("phases", "forward_seconds")),
    "backward_seconds": ("number", _phase("phases", "backward_seconds")),
    "backward_without_sync_seconds": ("number", _phase("phases_without_sync", "backward_seconds")),
    "optimizer_seconds": ("number", _phase("phases", "optimizer_seconds")),
    "peak_host_memory_bytes": ("integer", attrgetter("peak_host_memory_bytes")),
    "peak_device_memory_bytes": ("integer", attrgetter("peak_device_memory_bytes")),
    "peak_reserved_memory_bytes": ("integer", attrgetter("peak_reserved_memory_bytes")),
    "reduced_bytes_per_step": ("integer", attrgetter("reduced_bytes_per_step")),
    "collectives_per_step": ("number", attrgetter("collectives_per_step")),
    "sample_checksum": ("text", attrgetter("sample_checksum")),
    "initial_checksum": ("text", attrgetter("initial_checksum")),
    "final_checksum": ("text", attrgetter("final_checksum")),
}
"""Columns of ranks: their kind, and how they are read."""


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
    kinds = {metric.key: metric.kind for metric in TRIAL_METRICS}
    return _frame(kinds, [_trial(record, TRIAL_METRICS) for record in final_records(records)])


def rank_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per rank of a trial; steps and phases are means."""
    kinds = {metric.key: metric.kind for metric in IDENTITY_METRICS}
    kinds |= {key: kind for key, (kind, _) in RANK_COLUMNS.items()}
    lines = [
        _trial(record) | {key: read(rank) for key, (_, read) in RANK_COLUMNS.items()}
        for record in final_records(records)
        for rank in record.ranks
    ]
    return _frame(kinds, lines)


def step_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per step of each window (timed, without_sync) of each rank.

    It is built a window at a time, as a sweep has millions of steps. Text is categorical.
    """
    kinds: dict[str, ValueKind] = {metric.key: metric.kind for metric in IDENTITY_METRICS}
    kinds |= {"rank": "integer", "window": "text"}
    windows, lines = [], []
    for record in final_records(records):
        for rank in record.ranks:
            for name in ("timed", "without_sync"):
                window = getattr(rank, name)
                if window is not None and window.step_seconds:
                    windows.append(window)
                    lines.append(_trial(record) | {"rank": rank.rank, "window": name})
    frame = _frame(kinds, lines)
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


def _with_ends(metrics: Iterable[Metric], rows: Sequence[Any]) -> pd.DataFrame:
    """A column for each metric of the rows, and two more for the ends of its interval."""
    kinds: dict[str, ValueKind] = {}
    lines: list[dict[str, Any]] = [{} for _ in rows]
    for metric in metrics:
        kinds[metric.key] = metric.kind
        if metric.has_interval:
            kinds |= dict.fromkeys((f"{metric.key}_low", f"{metric.key}_high"), metric.kind)
        for line, row in zip(lines, rows, strict=True):
            value = row[metric.key]
            line[metric.key] = value.value if isinstance(value, Estimate) else value
            if isinstance(value, Estimate):
                line |= {f"{metric.key}_low": value.low, f"{metric.key}_high": value.high}
    return _frame(kinds, lines)


def _frame(kinds: Mapping[str, ValueKind], lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A column for each key, and a row for each line, which has values by key."""
    return pd.DataFrame(
        {
            key: pd.array([line.get(key) for line in lines], dtype=DTYPES[kind])
            for key, kind in kinds.items()
        }
    )
