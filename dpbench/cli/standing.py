"""How a sweep stands: a row for each configuration, the trial that runs, what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

from dpbench.cli.time_left import TimeLeft
from dpbench.cli.trial_words import Record, Spec, result, spec_of
from dpbench.records import Status, TrialRecord

State = Literal["queued", "running", "done", "failed", "skipped"]


@dataclass(kw_only=True, slots=True)
class Row:
    """One configuration and what became of its repetitions so far."""

    label: str
    asked: int = 0
    done: int = 0
    skipped: int = 0
    failed: bool = False
    running: bool = False
    said: str = ""
    """Of the last repetition that has no speed: why, or what a collective took."""
    item: str = ""
    speeds: list[float] = field(default_factory=list)
    """Items per second of each repetition that completed."""
    speed: float | None = None
    """Their geometric mean, as the table at the end has it."""

    @property
    def state(self) -> State:
        if self.running:
            return "running"
        if self.failed:
            return "failed"
        if self.skipped and self.skipped == self.done:
            return "skipped"
        return "queued" if self.done < self.asked else "done"

    def add(self, record: Record) -> None:
        self.done += 1
        self.skipped += record.status is Status.SKIPPED
        self.failed |= record.status not in (Status.COMPLETED, Status.SKIPPED)
        if record.status is Status.COMPLETED and isinstance(record, TrialRecord):
            from dpbench.analysis.estimate import LogMean
            from dpbench.analysis.throughput import throughput

            self.item = record.item
            self.speeds.append(throughput(record))
            self.speed = LogMean.of_runs(self.speeds).value
        else:
            self.said = result(record)


@dataclass(frozen=True, kw_only=True, slots=True)
class Current:
    """The trial that runs."""

    spec: Spec
    place: int
    """Of its row."""
    started_seconds: float
    """On the monotonic clock."""
    expected_seconds: float


class Standing:
    """Hears of every trial, as reporters do."""

    def __init__(self, *, grows: bool = False, noun: str = "trial") -> None:
        """`grows` if more repetitions may follow those that are planned; each is a `noun`."""
        self.rows: list[Row] = []
        self.current: Current | None = None
        self.latest = 0
        """Place of the row that ran last."""
        self.done = 0
        self.planned_in_all = 0
        self.grows = grows
        self.noun = noun
        self._places: dict[Spec, int] = {}
        self._time_left = TimeLeft()
        self._seconds_left: float | None = None

    def planned(self, specs: Sequence[Spec]) -> None:
        """These run next; adds the rows that are new."""
        for spec in specs:
            row = self.rows[self._place(spec)]
            row.asked = max(row.asked, spec.repetition + 1)
        self.planned_in_all = self.done + len(specs)
        self._time_left.planned(specs)
        self._seconds_left = self._time_left.seconds()

    def started(self, spec: Spec, at_seconds: float | None = None) -> None:
        """Now, or at a time of the monotonic clock."""
        self.stopped()
        place = self.latest = self._place(spec)
        self.rows[place].running = True
        expected = self._time_left.expected_seconds(spec)
        self.current = Current(
            spec=spec,
            place=place,
            started_seconds=monotonic() if at_seconds is None else at_seconds,
            expected_seconds=expected,
        )

    def stopped(self) -> None:
        """Nothing runs."""
        if self.current is not None:
            self.rows[self.current.place].running = False
        self.current = None

    def finished(self, record: Record) -> None:
        self.stopped()
        spec = spec_of(record)
        row = self.rows[self._place(spec)]
        row.asked = max(row.asked, spec.repetition + 1)
        row.add(record)
        self.done += 1
        self.planned_in_all = max(self.planned_in_all, self.done)
        self._time_left.finished(record)
        self._seconds_left = self._time_left.seconds()

    def over(self) -> None:
        """Nothing more will run, whatever was planned."""
        self.stopped()
        self.grows = False
        self._seconds_left = None

    def elapsed_seconds(self) -> float:
        """Of the trial that runs."""
        return monotonic() - self.current.started_seconds if self.current else 0.0

    def seconds_left(self) -> float | None:
        """Of all that is planned; None until a trial has been measured."""
        if self._seconds_left is None or self.current is None:
            return self._seconds_left
        return self._seconds_left - min(self.elapsed_seconds(), self.current.expected_seconds)

    def _place(self, spec: Spec) -> int:
        place = self._places.get(spec.configuration)
        if place is None:
            place = self._places[spec.configuration] = len(self.rows)
            self.rows.append(Row(label=spec.label))
        return place
