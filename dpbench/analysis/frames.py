"""Results as pandas data frames, one for each level of detail.

Columns have the type of their values, even with missing ones: text (string), whole numbers (Int64),
floats (NaN is missing), booleans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from statistics import fmean
from typing import Any, get_args, get_type_hints

import numpy as np
import pandas as pd

from dpbench.analysis.collectives import COLLECTIVE_METRICS, collective_rows
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.metric import Metric, PlainValue, Value, ValueType, value_type_of
from dpbench.analysis.metrics import METRICS, ROW_METRICS, if_timed, of_losses
from dpbench.analysis.repetitions import by_configuration
from dpbench.analysis.resources import memory_imbalance
from dpbench.analysis.rows import Row
from dpbench.analysis.throughput import elapsed_seconds
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import Mode, Phase, RankMeasurement, TrialRecord

PANDAS_DTYPES: dict[ValueType, str] = {
    "text": "string",
    "integer": "Int64",
    "number": "float64",
    "boolean": "boolean",
}
Reading = tuple[ValueType, Callable[[Any], PlainValue]]
"""The type of a column, and how its values are read."""
TRIAL_VALUES: dict[str, Reading] = {
    "trial_id": ("text", attrgetter("trial.trial_id")),
    "repetition": ("integer", attrgetter("trial.repetition")),
    "dataset": ("text", lambda record: record.configuration.workload.dataset or None),
    "environment_id": ("text", lambda record: next(iter(record.environment_ids), None)),
    "started_utc": ("text", attrgetter("started_utc")),
    **{m.key: (m.value_type, m.in_trial) for m in METRICS if m.of_configuration or m.of_trial},
    "elapsed_seconds": ("number", if_timed(elapsed_seconds)),
    "samples": ("integer", if_timed(lambda r: sum(rank.timed.samples for rank in r.ranks))),
    "initial_loss": ("number", of_losses(lambda values, _: values[0])),
    "loss_delta": ("number", of_losses(lambda values, _: values[0] - values[-1])),
    "flops_per_item": ("number", attrgetter("facts.flops_per_item")),
    "memory_imbalance": ("number", memory_imbalance),
    "max_relative_error": (
        "number",
        lambda record: one.max_relative_error if (one := record.facts.verification) else None,
    ),
}
"""The columns of trials: metrics, and what only a trial has. The initial loss is that of the first
timed step, the delta that − the last one's."""
IDENTITY_VALUES = {
    key: TRIAL_VALUES[key]
    for key in (
        *("trial_id", "implementation", "backend", "group_size", "batch_size", "repetition"),
        "status",
    )
}
"""The first columns of ranks and of steps."""


def _mean_step(mode: Mode, rank: RankMeasurement) -> float | None:
    window = rank.windows.get(mode)
    return window.mean_step_seconds if window and window.step_seconds else None


def _mean_phase(mode: Mode, phase: Phase, rank: RankMeasurement) -> float | None:
    seconds = rank.phases.get(mode, {}).get(phase)
    return fmean(seconds) if seconds else None


RANK_VALUES: dict[str, Reading] = {
    **{
        name: (value_type, attrgetter(name))
        for name, hint in get_type_hints(RankMeasurement).items()
        if (value_type := value_type_of(hint))
    },
    **{
        f"peak_{kind}_memory_bytes": ("integer", attrgetter(f"peaks.{kind}_bytes"))
        for kind in ("host", "device", "reserved")
    },
    "timed_steps": ("integer", lambda rank: len(rank.timed.step_seconds)),
    "samples": ("integer", attrgetter("timed.samples")),
    "timed_seconds": ("number", attrgetter("timed.seconds")),
    "cpu_seconds": ("number", attrgetter("timed.cpu_seconds")),
    "step_seconds": ("number", partial(_mean_step, "timed")),
    "step_unsynced_seconds": ("number", partial(_mean_step, "unsynced")),
    **{
        f"{phase}_seconds": ("number", partial(_mean_phase, "timed", phase))
        for phase in get_args(Phase)
    },
    "backward_unsynced_seconds": ("number", partial(_mean_phase, "unsynced", "backward")),
}
"""The columns of ranks: their fields that are single values, and sums and means over steps."""


def row_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """One row per configuration, with the ends of intervals; None is missing. A key never changes
    its meaning: `images_per_second` keeps its name whatever the `item` is."""
    return _frame(_readings(ROW_METRICS.values()), [*rows])


def collective_frame(records: Iterable[CollectiveRecord]) -> pd.DataFrame:
    """One row per collective, backend, group size and message size; a collective without any
    measurement has one row, without a size."""
    return _frame(_readings(COLLECTIVE_METRICS), collective_rows(records))


def trial_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per trial."""
    return _frame(TRIAL_VALUES, [*final_records(records)])


def rank_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per rank of a trial; steps and phases are means."""
    found = [(record, rank) for record in final_records(records) for rank in record.ranks]
    trials = _frame(IDENTITY_VALUES, [record for record, _ in found])
    return trials.join(_frame(RANK_VALUES, [rank for _, rank in found]))


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
    frame = _frame(IDENTITY_VALUES, [record for record, *_ in found])
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


def _readings(metrics: Iterable[Metric]) -> dict[str, Reading]:
    """The columns of metrics, and for an interval two more with its ends."""
    return {
        f"{one.key}{end and '_'}{end}": (one.value_type, partial(_value_or_end, one.key, end))
        for one in metrics
        for end in (("", "low", "high") if one.has_interval else ("",))
    }


def _value_or_end(key: str, end: str, row: Any) -> PlainValue:
    """The value of a metric in a row, or an end of its interval."""
    value: Value = row[key]
    if isinstance(value, Estimate):
        number: float | None = getattr(value, end or "value")
        return number
    return None if end else value


def _frame(readings: Mapping[str, Reading], sources: Sequence[Any]) -> pd.DataFrame:
    """The columns that are read from these rows, trials or ranks."""
    return pd.DataFrame(
        {
            key: pd.array([*map(read, sources)], dtype=PANDAS_DTYPES[value_type])
            for key, (value_type, read) in readings.items()
        }
    )
