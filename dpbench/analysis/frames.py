"""Results as pandas data frames, one for each level of detail.

Columns have the type of their metric, even with missing values: text (string), whole numbers
(Int64), floats (NaN is missing), booleans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from statistics import fmean
from typing import Any, get_args, get_type_hints

import numpy as np
import pandas as pd

from dpbench.analysis.collectives import COLLECTIVE_METRICS, collective_rows
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.metric import Metric, ValueType
from dpbench.analysis.metrics import ROW_METRICS, TRIAL_METRICS
from dpbench.analysis.repetitions import by_configuration
from dpbench.analysis.rows import Row
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import Mode, Phase, RankMeasurement, TrialRecord

DTYPES: dict[ValueType, str] = {
    "text": "string",
    "integer": "Int64",
    "number": "float64",
    "boolean": "boolean",
}
FIRST_METRICS = tuple(
    metric
    for metric in TRIAL_METRICS
    if metric.key
    in (
        *("trial_id", "implementation", "backend", "group_size", "batch_size", "repetition"),
        "status",
    )
)
"""Metrics with which rows of ranks and steps begin."""
SCALARS: dict[Any, ValueType] = {str: "text", int: "integer", float: "number"}


def _mean_step(mode: Mode, rank: RankMeasurement) -> float | None:
    window = rank.windows.get(mode)
    return window.mean_step_seconds if window and window.step_seconds else None


def _mean_phase(mode: Mode, phase: Phase, rank: RankMeasurement) -> float | None:
    seconds = rank.phases.get(mode, {}).get(phase)
    return fmean(seconds) if seconds else None


RANK_METRICS = (
    *(
        Metric(key=name, value_type=value_type, of_row=attrgetter(name))
        for name, hint in get_type_hints(RankMeasurement).items()
        for scalar, value_type in SCALARS.items()
        if hint in (scalar, scalar | None)
    ),
    Metric(
        key="timed_steps", value_type="integer", of_row=lambda rank: len(rank.timed.step_seconds)
    ),
    Metric(key="samples", value_type="integer", of_row=attrgetter("timed.samples")),
    Metric(key="timed_seconds", of_row=attrgetter("timed.seconds")),
    Metric(key="cpu_seconds", of_row=attrgetter("timed.cpu_seconds")),
    Metric(key="step_seconds", of_row=partial(_mean_step, "timed")),
    Metric(key="step_unsynced_seconds", of_row=partial(_mean_step, "unsynced")),
    *(
        Metric(key=f"{phase}_seconds", of_row=partial(_mean_phase, "timed", phase))
        for phase in get_args(Phase)
    ),
    Metric(
        key="backward_unsynced_seconds",
        of_row=partial(_mean_phase, "unsynced", "backward"),
    ),
)
"""Metrics of ranks: their fields that are single values, and sums and means over their steps."""


def to_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """One row per configuration, with the ends of intervals; None is missing. A key never changes
    its meaning: `images_per_second` keeps its name whatever the `item` is."""
    return _frame(ROW_METRICS.values(), [*rows], lambda metric, row: row[metric.key])


def collective_frame(records: Iterable[CollectiveRecord]) -> pd.DataFrame:
    """One row per collective, backend, group size and message size; a collective without any
    measurement has one row, without a size."""
    rows = collective_rows(records)
    return _frame(COLLECTIVE_METRICS, rows, lambda metric, row: row[metric.key])


def trial_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per trial."""
    return _frame(TRIAL_METRICS, [*final_records(records)], Metric.in_trial)


def rank_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per rank of a trial; steps and phases are means."""
    ranks = [(record, rank) for record in final_records(records) for rank in record.ranks]
    trials = _frame(FIRST_METRICS, [record for record, _ in ranks], Metric.in_trial)
    return trials.join(_frame(RANK_METRICS, [rank for _, rank in ranks], Metric.in_row))


def step_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per step of each window (timed, unsynced, cached) of each rank.

    It is built a window at a time, as a sweep has millions of steps. Text is categorical.
    """
    found = [
        (record, rank.rank, mode, window)
        for record in final_records(records)
        for rank in record.ranks
        for mode, window in rank.windows.items()
    ]
    windows = [window for *_, window in found]
    frame = _frame(FIRST_METRICS, [record for record, *_ in found], Metric.in_trial)
    frame["rank"] = pd.array([rank for _, rank, *_ in found], dtype="Int64")
    frame["window"] = pd.array([mode for *_, mode, _ in found], dtype="string")
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


def _frame(
    metrics: Iterable[Metric], rows: Sequence[Any], read: Callable[[Metric, Any], Any]
) -> pd.DataFrame:
    """A column for each metric, and two more for the ends of an interval; `read` gives the value of
    a metric in a row."""
    columns = {}
    for metric in metrics:
        values = [read(metric, row) for row in rows]
        parts = {metric.key: [v.value if isinstance(v, Estimate) else v for v in values]}
        for end in ("low", "high") if metric.has_interval else ():
            parts[f"{metric.key}_{end}"] = [getattr(value, end, None) for value in values]
        for key, part in parts.items():
            columns[key] = pd.array(part, dtype=DTYPES[metric.value_type])
    return pd.DataFrame(columns)
