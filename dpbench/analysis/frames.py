"""Results as pandas data frames, one for each level of detail.

Columns have the type of their values, even with missing ones: text (string), whole numbers (Int64),
floats (NaN is missing), booleans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from statistics import fmean
from typing import get_args, get_type_hints

import numpy as np
import pandas as pd

from dpbench.analysis.collectives import COLLECTIVE_METRICS, collective_rows
from dpbench.analysis.metrics import (
    METRICS,
    Metric,
    Source,
    Value,
    ValueType,
    claimed_metrics,
    if_timed,
    of_losses,
    value_type_of,
)
from dpbench.analysis.resources import memory_imbalance
from dpbench.analysis.rows import Row, by_configuration
from dpbench.analysis.throughput import elapsed_seconds
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import Mode, Phase, RankMeasurement, TrialRecord
from dpbench.specs.labels import IDENTITY

PANDAS_DTYPES: dict[ValueType, str] = {
    "text": "string",
    "integer": "Int64",
    "number": "float64",
    "boolean": "boolean",
    "estimate": "float64",
}
FrameColumn = tuple[str, ValueType, Callable[[Source], Value]]
"""The key of a column, the type of its values, and how one is read."""
TRIAL_COLUMNS: tuple[FrameColumn[TrialRecord], ...] = (
    ("trial_id", "text", attrgetter("trial.trial_id")),
    ("repetition", "integer", attrgetter("trial.repetition")),
    ("dataset", "text", lambda record: record.configuration.workload.dataset or None),
    ("environment_id", "text", lambda record: next(iter(record.environment_ids), None)),
    ("started_utc", "text", attrgetter("started_utc")),
    ("duration_seconds", "number", attrgetter("duration_seconds")),
    *(
        (
            metric.key,
            "number" if metric.value_type == "estimate" else metric.value_type,
            metric.of_trial,
        )
        for metric in METRICS
        if metric.of_trial
    ),
    ("elapsed_seconds", "number", if_timed(elapsed_seconds)),
    (
        "samples",
        "integer",
        if_timed(lambda record: sum(rank.timed.samples for rank in record.ranks)),
    ),
    ("initial_loss", "number", of_losses(lambda values, _: values[0])),
    ("loss_delta", "number", of_losses(lambda values, _: values[0] - values[-1])),
    ("flops_per_item", "number", attrgetter("facts.flops_per_item")),
    ("memory_imbalance", "number", memory_imbalance),
    (
        "max_relative_error",
        "number",
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


RANK_COLUMNS: tuple[FrameColumn[RankMeasurement], ...] = (
    *(
        (name, value_type, attrgetter(name))
        for name, hint in get_type_hints(RankMeasurement).items()
        if (value_type := value_type_of(hint))
    ),
    ("peak_host_memory_bytes", "integer", attrgetter("peaks.host_bytes")),
    ("peak_device_memory_bytes", "integer", attrgetter("peaks.device_bytes")),
    ("peak_reserved_memory_bytes", "integer", attrgetter("peaks.reserved_bytes")),
    ("timed_steps", "integer", lambda rank: len(rank.timed.step_seconds)),
    ("samples", "integer", attrgetter("timed.samples")),
    ("timed_seconds", "number", attrgetter("timed.seconds")),
    ("cpu_seconds", "number", attrgetter("timed.cpu_seconds")),
    ("step_seconds", "number", partial(_mean_step, "timed")),
    ("step_unsynced_seconds", "number", partial(_mean_step, "unsynced")),
    *(
        (f"{phase}_seconds", "number", partial(_mean_phase, "timed", phase))
        for phase in get_args(Phase)
    ),
    ("backward_unsynced_seconds", "number", partial(_mean_phase, "unsynced", "backward")),
)
"""The columns of ranks: their fields that are single values, and sums and means over steps."""


def row_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """One row per configuration, with the ends of intervals; None is missing. A key never changes
    its meaning: `images_per_second` keeps its name whatever the `item` is."""
    listed = [*rows]
    return _frame(_columns_of((*METRICS, *claimed_metrics(listed))), listed)


def collective_frame(records: Iterable[CollectiveRecord]) -> pd.DataFrame:
    """One row per collective, backend, group size and message size; a collective without any
    measurement has one row, without a size."""
    return _frame(_columns_of(COLLECTIVE_METRICS), collective_rows(records))


def trial_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per trial."""
    return _frame(TRIAL_COLUMNS, [*final_records(records)])


def rank_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per rank of a trial; steps and phases are means."""
    ranks = [(record, rank) for record in final_records(records) for rank in record.ranks]
    trials = _identity_frame([record for record, _ in ranks])
    return trials.join(_frame(RANK_COLUMNS, [rank for _, rank in ranks]))


def step_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per step of each window (timed, unsynced, cached) of each rank.

    It is built a window at a time, as a sweep has millions of steps. Text is categorical.
    """
    measured = [
        (record, rank.rank, mode, window)
        for record in final_records(records)
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


def final_records(records: Iterable[TrialRecord]) -> Iterator[TrialRecord]:
    """The last record of each trial, by configuration in the order they were first run."""
    for repetitions in by_configuration(records).values():
        yield from repetitions


def _identity_frame(records: Sequence[TrialRecord]) -> pd.DataFrame:
    """What identifies each trial, and its status."""
    columns = {column[0]: column for column in TRIAL_COLUMNS}
    return _frame([columns[key] for key in FIRST_KEYS], records)


def _columns_of(metrics: Iterable[Metric[Source]]) -> Iterator[FrameColumn[Source]]:
    return ((metric.key, metric.value_type, metric.read) for metric in metrics)


def _frame(columns: Iterable[FrameColumn[Source]], sources: Sequence[Source]) -> pd.DataFrame:
    """A column for each value of these rows, trials or ranks, and two for the ends of intervals."""
    arrays = {}
    for key, value_type, read in columns:
        values = [read(source) for source in sources]
        dtype = PANDAS_DTYPES[value_type]
        if value_type != "estimate":
            arrays[key] = pd.array(values, dtype=dtype)
            continue
        for part, end in (("value", ""), ("low", "_low"), ("high", "_high")):
            numbers = [getattr(value, part, None) for value in values]
            arrays[f"{key}{end}"] = pd.array(numbers, dtype=dtype)
    return pd.DataFrame(arrays)
