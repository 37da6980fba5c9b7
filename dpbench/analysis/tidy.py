"""Records as tidy rows, one observation each: of trials, of ranks, of steps.

Plain values under stable keys. Of a trial that was run again the last record counts, as in the
tables. Rows are made one after the other: the steps of a large sweep need not fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dpbench.analysis.fields import Field, Plain, read_row
from dpbench.analysis.repetitions import by_configuration
from dpbench.analysis.trial_fields import IDENTITY, RANK_FIELDS, TRIAL_FIELDS
from dpbench.records import RankMeasurement, TrialRecord, Window

Rows = Iterator[dict[str, Plain]]

WINDOWS = TIMED, WITHOUT_SYNC = ("timed", "without_sync")

RANK_LEVEL_FIELDS: tuple[Field, ...] = (*IDENTITY, *RANK_FIELDS)

STEP_FIELDS: tuple[Field, ...] = (
    *IDENTITY,
    Field(key="rank", kind="integer", meaning="Number of the rank, from 0.", required=True),
    Field(
        key="window",
        kind="text",
        meaning="timed, or without_sync: the same number of steps without synchronization.",
        required=True,
        choices=WINDOWS,
    ),
    Field(
        key="step",
        kind="integer",
        meaning="Number of the step in its window, from 0.",
        required=True,
    ),
    Field(key="seconds", kind="number", meaning="Length of the step on this rank.", required=True),
    Field(
        key="loss",
        kind="number",
        meaning="Mean loss of the rank's samples of the step.",
        finite=False,
    ),
    Field(
        key="samples",
        kind="integer",
        meaning="Samples that the rank consumed in the step.",
    ),
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
    """One row a trial, with the keys of TRIAL_FIELDS."""
    for record in final_records(records):
        yield read_row(TRIAL_FIELDS, record)


def rank_rows(records: Iterable[TrialRecord]) -> Rows:
    """One row a rank, with the keys of RANK_LEVEL_FIELDS; none of trials without ranks."""
    for record in final_records(records):
        identity = read_row(IDENTITY, record)
        for rank in record.ranks:
            yield {**identity, **read_row(RANK_FIELDS, rank)}


def step_rows(records: Iterable[TrialRecord]) -> Rows:
    """One row a step, rank and window, with the keys of STEP_FIELDS."""
    identity: dict[str, Plain] = {}
    last: TrialRecord | None = None
    for record, rank, name, window in windows(records):
        if record is not last:
            identity, last = read_row(IDENTITY, record), record
        shared = {**identity, "rank": rank.rank, "window": name}
        samples = samples_per_step(window)
        losses = window.losses or (None,) * len(window.step_seconds)
        for step, (seconds, loss) in enumerate(zip(window.step_seconds, losses, strict=True)):
            yield {**shared, "step": step, "seconds": seconds, "loss": loss, "samples": samples}


def windows(records: Iterable[TrialRecord]) -> Iterator[RankWindow]:
    """Every window that a step was timed in."""
    for record in final_records(records):
        for rank in record.ranks:
            yield RankWindow(record, rank, TIMED, rank.timed)
            if rank.without_sync is not None:
                yield RankWindow(record, rank, WITHOUT_SYNC, rank.without_sync)


def samples_per_step(window: Window) -> int | None:
    """Every step of a window takes as many; None of a window in which that cannot be."""
    steps = len(window.step_seconds)
    return window.samples // steps if steps and window.samples % steps == 0 else None
