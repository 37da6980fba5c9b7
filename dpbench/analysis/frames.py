"""Results as pandas data frames, one for each level of detail.

Columns have the type of their field, even with missing values: text (string), whole numbers
(Int64), floats (NaN is missing), booleans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
import pandas as pd

from dpbench.analysis.communication.timings import SIZE_COLUMNS, MeasuredCollective, measured
from dpbench.analysis.configuration import ConfigurationSummary, by_configuration
from dpbench.analysis.fields import (
    Field,
    FieldKind,
    Plain,
    ReadField,
    flat,
    integer,
    number,
    read_row,
    text,
)
from dpbench.analysis.metrics import CONFIGURATION_FIELDS, TRIAL_FIELDS, configuration_row
from dpbench.analysis.throughput import mean_step_seconds
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import Phases, RankMeasurement, TrialRecord, Window

DTYPES: dict[FieldKind, str] = {
    "text": "string",
    "integer": "Int64",
    "number": "float64",
    "boolean": "boolean",
}
IDENTITY = tuple(
    field
    for field in TRIAL_FIELDS
    if field.key
    in ("trial_id", "implementation", "backend", "group_size", "batch_size", "repetition", "status")
)
"""Fields with which rows of ranks and steps begin."""


def _mean_step(window: Window | None) -> float | None:
    return mean_step_seconds(window) if window and window.step_seconds else None


def _phase(phases: Phases | None, part: Callable[[Phases], Sequence[float]]) -> float | None:
    return fmean(part(phases)) if phases and part(phases) else None


RANK_FIELDS: tuple[ReadField[RankMeasurement], ...] = (
    integer("rank"),
    integer("pid"),
    text("device"),
    number("setup_seconds"),
    number("comm_init_seconds"),
    integer("warmup_steps"),
    integer("timed_steps", read=lambda rank: len(rank.timed.step_seconds)),
    number("timed_seconds", read=lambda rank: rank.timed.seconds),
    integer("samples", read=lambda rank: rank.timed.samples),
    number("cpu_seconds", read=lambda rank: rank.timed.cpu_seconds),
    number("step_seconds", read=lambda rank: _mean_step(rank.timed)),
    number("step_without_sync_seconds", read=lambda rank: _mean_step(rank.without_sync)),
    number("data_seconds", read=lambda rank: _phase(rank.phases, lambda p: p.data_seconds)),
    number("forward_seconds", read=lambda rank: _phase(rank.phases, lambda p: p.forward_seconds)),
    number("backward_seconds", read=lambda rank: _phase(rank.phases, lambda p: p.backward_seconds)),
    number(
        "backward_without_sync_seconds",
        read=lambda rank: _phase(rank.phases_without_sync, lambda p: p.backward_seconds),
    ),
    number(
        "optimizer_seconds", read=lambda rank: _phase(rank.phases, lambda p: p.optimizer_seconds)
    ),
    integer("peak_host_memory_bytes"),
    integer("peak_device_memory_bytes"),
    integer("peak_reserved_memory_bytes"),
    integer("reduced_bytes_per_step"),
    number("collectives_per_step"),
    text("sample_checksum"),
    text("initial_checksum"),
    text("final_checksum"),
)
_WINDOW_FIELDS: tuple[Field, ...] = (integer("rank"), text("window"))
_COLLECTIVE_FIELDS: tuple[ReadField[MeasuredCollective], ...] = (
    text("collective"),
    text("backend"),
    integer("group_size"),
    integer("nodes"),
    text("dtype"),
    integer("threads_per_replica"),
    integer("repetitions"),
    text("status"),
    text("reason"),
)


def to_frame(summaries: Iterable[ConfigurationSummary]) -> pd.DataFrame:
    """One row per configuration; None is missing."""
    return _frame(CONFIGURATION_FIELDS, map(configuration_row, summaries))


def trial_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per trial."""
    return _frame(TRIAL_FIELDS, (read_row(TRIAL_FIELDS, one) for one in final_records(records)))


def rank_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per rank of a trial; steps and phases are means."""
    rows = (
        {**read_row(IDENTITY, record), **read_row(RANK_FIELDS, rank)}
        for record in final_records(records)
        for rank in record.ranks
    )
    return _frame((*IDENTITY, *RANK_FIELDS), rows)


def step_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """One row per step of each window (timed, without_sync) of each rank.

    It is built a window at a time, as a sweep has millions of steps. Text is categorical.
    """
    shared: list[dict[str, Plain]] = []
    windows: list[Window] = []
    for record in final_records(records):
        identity = read_row(IDENTITY, record)
        for rank in record.ranks:
            for name, window in (("timed", rank.timed), ("without_sync", rank.without_sync)):
                if window is not None and window.step_seconds:
                    shared.append({**identity, "rank": rank.rank, "window": name})
                    windows.append(window)
    fields = (*IDENTITY, *_WINDOW_FIELDS)
    frame = _frame(fields, shared)
    categories = {field.key: "category" for field in fields if field.kind == "text"}
    lengths = np.array([len(window.step_seconds) for window in windows], dtype=np.int64)
    frame = frame.astype(categories)
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
    sizes = tuple(flat(SIZE_COLUMNS))
    rows: list[dict[str, Plain]] = []
    for one in measured(records):
        status, reason = one.failures[0] if one.failures else (None, "")
        ended = {"status": status.value if status else "completed", "reason": reason or None}
        shared = {**one.identity, **ended}
        missing = dict.fromkeys(field.key for field in sizes)
        rows += [{**shared, **read_row(sizes, size)} for size in one.sizes] or [
            {**shared, **missing}
        ]
    return _frame((*_COLLECTIVE_FIELDS, *sizes), rows)


def final_records(records: Iterable[TrialRecord]) -> Iterator[TrialRecord]:
    """The last record of each trial, by configuration in the order they were first run."""
    for repetitions in by_configuration(records).values():
        yield from repetitions


def _frame(fields: Sequence[Field], rows: Iterable[Mapping[str, Plain]]) -> pd.DataFrame:
    table = list(rows)
    return pd.DataFrame(
        {
            field.key: pd.array([row[field.key] for row in table], dtype=DTYPES[field.kind])
            for field in fields
        }
    )
