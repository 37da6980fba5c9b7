"""Records as tidy rows, one observation each: trials, ranks, steps and collectives.

Rows have plain values under stable keys. If a trial was run again its last record counts, as in the
tables. Rows are generated one after the other: the steps of a large sweep need not fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dpbench.analysis.communication.timings import measured
from dpbench.analysis.fields.collectives import SIZE_FIELDS, SPEC_FIELDS
from dpbench.analysis.fields.field import Plain, read_row
from dpbench.analysis.fields.levels import TRIAL_FIELDS, TRIAL_IDENTITY
from dpbench.analysis.fields.ranks import RANK_FIELDS, TIMED, WITHOUT_SYNC
from dpbench.analysis.outcome import by_configuration
from dpbench.collectives import CollectiveRecord
from dpbench.records import RankMeasurement, TrialRecord, Window

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
