"""Results as pandas data frames, one for each level of detail.

Columns have the type of their values, even with missing ones: text (string), whole numbers (Int64),
floats (NaN is missing), booleans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from statistics import fmean
from typing import get_args, get_type_hints

import numpy as np
import pandas as pd

from dpbench.analysis.collectives import COLLECTIVE_METRICS, CollectiveRow
from dpbench.analysis.metrics import (
    METRICS,
    Metric,
    Source,
    ValueType,
    claimed_metrics,
    if_timed,
    of_losses,
    value_type_of,
)
from dpbench.analysis.resources import memory_imbalance
from dpbench.analysis.rows import Row, by_configuration
from dpbench.analysis.throughput import elapsed_seconds
from dpbench.records.trial import Mode, Phase, RankMeasurement, TrialRecord
from dpbench.specs.labels import IDENTITY, Labels

PANDAS_DTYPES: dict[ValueType, str] = {
    "text": "string",
    "integer": "Int64",
    "number": "float64",
    "boolean": "boolean",
    "estimate": "float64",
}
TRIAL_COLUMNS: tuple[Metric[TrialRecord], ...] = (
    Metric("trial_id", attrgetter("trial_id"), "text"),
    Metric("repetition", attrgetter("repetition"), "integer"),
    Metric("dataset", lambda record: record.configuration.workload.dataset or None, "text"),
    Metric("environment_id", lambda record: next(iter(record.environment_ids), None), "text"),
    Metric("started_utc", attrgetter("started_utc"), "text"),
    Metric("duration_seconds", attrgetter("duration_seconds")),
    *(
        Metric(
            metric.key,
            metric.of_trial,
            "number" if metric.value_type == "estimate" else metric.value_type,
        )
        for metric in METRICS
        if metric.of_trial
    ),
    Metric("elapsed_seconds", if_timed(elapsed_seconds)),
    Metric(
        "samples",
        if_timed(lambda record: sum(rank.timed.samples for rank in record.ranks)),
        "integer",
    ),
    Metric("initial_loss", of_losses(lambda values, _: values[0])),
    Metric("loss_delta", of_losses(lambda values, _: values[0] - values[-1])),
    Metric("flops_per_item", attrgetter("facts.flops_per_item")),
    Metric("memory_imbalance", memory_imbalance),
    Metric(
        "max_relative_error",
        lambda record: proof.max_relative_error if (proof := record.facts.verification) else None,
    ),
)
"""The columns of trials: metrics, and what only a trial has. The initial loss is that of the first
timed step, the delta that − the last one's."""
FIRST_KEYS = ("trial_id", *IDENTITY, "repetition", "status")
"""The first columns of ranks and of steps."""


def _mean_step(mode: Mode, rank: RankMeasurement) -> float | None:
    window = rank.windows.get(mode)
    return window.mean_step_seconds if window and window.step_seconds else None


def _mean_phase(mode: Mode, phase: Phase, rank: RankMeasurement) -> float | None:
    seconds = rank.phases.get(mode, {}).get(phase)
    return fmean(seconds) if seconds else None


RANK_COLUMNS: tuple[Metric[RankMeasurement], ...] = (
    *(
        Metric(name, attrgetter(name), value_type)
        for name, hint in get_type_hints(RankMeasurement).items()
        if (value_type := value_type_of(hint))
    ),
    Metric("peak_host_memory_bytes", attrgetter("peaks.host_bytes"), "integer"),
    Metric("peak_device_memory_bytes", attrgetter("peaks.device_bytes"), "integer"),
    Metric("peak_reserved_memory_bytes", attrgetter("peaks.reserved_bytes"), "integer"),
    Metric("timed_steps", lambda rank: len(rank.timed.step_seconds), "integer"),
    Metric("samples", attrgetter("timed.samples"), "integer"),
    Metric("timed_seconds", attrgetter("timed.seconds")),
    Metric("cpu_seconds", attrgetter("timed.cpu_seconds")),
    Metric("page_faults", attrgetter("timed.page_faults"), "integer"),
    Metric("step_seconds", partial(_mean_step, "timed")),
    Metric("step_unsynced_seconds", partial(_mean_step, "unsynced")),
    *(
        Metric(f"{phase}_seconds", partial(_mean_phase, "timed", phase))
        for phase in get_args(Phase)
    ),
    Metric("backward_unsynced_seconds", partial(_mean_phase, "unsynced", "backward")),
)
"""The columns of ranks: their fields that are single values, and sums and means over steps."""


def row_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """One row per configuration, with the ends of intervals; None is missing. A key never changes
    its meaning: `images_per_second` keeps its name whatever the `item` is."""
    listed = [*rows]
    return _frame((*METRICS, *claimed_metrics(listed)), listed)


def collective_frame(rows: Sequence[CollectiveRow]) -> pd.DataFrame:
    """One row per collective, backend, group size and message size; a collective without any
    measurement has one row, without a size."""
    return _frame(COLLECTIVE_METRICS, rows)


def trial_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per trial, with the label of its row."""
    trials = [*_in_order(records)]
    labels = Labels.among(trial.configuration for trial in trials)
    texts = pd.array([labels.label(trial.configuration) for trial in trials], dtype="string")
    return _frame(TRIAL_COLUMNS, trials).assign(label=texts)


def rank_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per rank of a trial; steps and phases are means."""
    ranks = [(record, rank) for record in _in_order(records) for rank in record.ranks]
    trials = _identity_frame([record for record, _ in ranks])
    return trials.join(_frame(RANK_COLUMNS, [rank for _, rank in ranks]))


def step_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per step of each window (timed, unsynced, cached) of each rank.

    It is built a window at a time, as a sweep has millions of steps. Text is categorical.
    """
    measured = [
        (record, rank.rank, mode, window)
        for record in _in_order(records)
        for rank in record.ranks
        for mode, window in rank.windows.items()
    ]
    windows = [window for *_, window in measured]
    frame = _identity_frame([record for record, *_ in measured])
    frame["rank"] = pd.array([rank for _, rank, *_ in measured], dtype="Int64")
    frame["window"] = pd.array([mode for *_, mode, _ in measured], dtype="string")
    frame = frame.astype(dict.fromkeys(frame.select_dtypes("string"), "category"))
    lengths = np.array([len(window.step_seconds) for window in windows], dtype=np.int64)
    frame = frame.loc[frame.index.repeat(lengths)].reset_index(drop=True)
    frame["step"] = np.concatenate([np.arange(count) for count in lengths] or [lengths])
    frame["seconds"] = np.concatenate([window.step_seconds for window in windows] or [()])
    frame["loss"] = np.concatenate(
        [window.losses or np.full(len(window.step_seconds), np.nan) for window in windows] or [()]
    )
    return frame


def _in_order(records: Iterable[TrialRecord]) -> Iterator[TrialRecord]:
    """The records by configuration, in the order these were first run."""
    for repetitions in by_configuration(records).values():
        yield from repetitions


def _identity_frame(records: Sequence[TrialRecord]) -> pd.DataFrame:
    """What identifies each trial, and its status."""
    columns = {column.key: column for column in TRIAL_COLUMNS}
    return _frame([columns[key] for key in FIRST_KEYS], records)


def _frame(columns: Iterable[Metric[Source]], sources: Sequence[Source]) -> pd.DataFrame:
    """A column for each value of these rows, trials or ranks, and two for the ends of intervals."""
    arrays = {}
    for column in columns:
        values = [column.read(source) for source in sources]
        dtype = PANDAS_DTYPES[column.value_type]
        if column.value_type != "estimate":
            arrays[column.key] = pd.array(values, dtype=dtype)
            continue
        for part, end in (("value", ""), ("low", "_low"), ("high", "_high")):
            numbers = [getattr(value, part, None) for value in values]
            arrays[f"{column.key}{end}"] = pd.array(numbers, dtype=dtype)
    return pd.DataFrame(arrays)
