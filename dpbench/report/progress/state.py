"""The progress of a sweep: a row for each configuration, the trial that runs, the time left.

It is fed by the reporters of the process that measures (`trials`). Trials and collectives have
words of one line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from typing import Literal

from dpbench import units
from dpbench.records.collectives import CollectiveRecord, CollectiveSpec
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import TrialSpec

Spec = TrialSpec | CollectiveSpec
Record = TrialRecord | CollectiveRecord


def describe(record: Record) -> str:
    """Writes "ddp/gloo ×2, batch 32, repetition 1: 3,936 images/s (1.2 s)"."""
    took = "" if record.status is Status.SKIPPED else f" ({units.seconds(record.duration_seconds)})"
    return f"{name(spec_of(record))}: {result(record)}{took}"


def spec_of(record: Record) -> Spec:
    return record.trial if isinstance(record, TrialRecord) else record.collective


def name(spec: Spec) -> str:
    return f"{spec.label}, repetition {spec.repetition + 1}"


def result(record: Record) -> str:
    if record.status is not Status.COMPLETED:
        return f"{record.status.words}: {record.reason}"
    if isinstance(record, CollectiveRecord):
        return _slowest_ranks_median(record)
    # Imported here, as a training reports its progress without the statistics and their numpy.
    from dpbench.analysis.throughput import throughput

    return f"{speed(throughput(record))} {record.item}/s"


def speed(items_per_second: float) -> str:
    """Whole items, but three digits at least: "3,936", "0.412"."""
    return f"{items_per_second:,.0f}" if items_per_second >= 100 else f"{items_per_second:.3g}"


def left(seconds: float) -> str:
    return f"{units.seconds(seconds)} left" if seconds >= 1 else "under 1 s left"


def _slowest_ranks_median(record: CollectiveRecord) -> str:
    """Times of the smallest and the largest message: "4 B in 265 µs, 244.1 MiB in 98 ms"."""
    ends = {0, len(record.collective.sizes_bytes) - 1}
    return ", ".join(
        f"{units.bytes_binary(record.collective.sizes_bytes[end])} in "
        f"{units.seconds(max(median(rank.timings[end].seconds) for rank in record.ranks))}"
        for end in sorted(ends)
    )


RowState = Literal["queued", "running", "done", "failed", "skipped"]


@dataclass(kw_only=True, slots=True)
class Row:
    """One configuration and what became of its repetitions so far."""

    label: str
    work: str = ""
    """See TrialSpec.work: speeds of others cannot be compared with this one's."""
    planned: int = 0
    """Repetitions in all."""
    done: int = 0
    skipped: int = 0
    failed: bool = False
    running: bool = False
    remark: str = ""
    """Why the last repetition without a speed has none, or what a collective took."""
    item: str = ""
    speeds: list[float] = field(default_factory=list)
    """Items per second of each repetition that completed."""
    speed: float | None = None
    """Their geometric mean, as the table at the end has it."""

    @property
    def state(self) -> RowState:
        if self.running:
            return "running"
        if self.failed:
            return "failed"
        if self.skipped and self.skipped == self.done:
            return "skipped"
        return "queued" if self.done < self.planned else "done"

    def add(self, record: Record) -> None:
        self.done += 1
        self.skipped += record.status is Status.SKIPPED
        self.failed |= record.status not in (Status.COMPLETED, Status.SKIPPED)
        if record.status is Status.COMPLETED and isinstance(record, TrialRecord):
            # Imported here for the same reason as in `result`.
            from dpbench.analysis.estimate import LogMean
            from dpbench.analysis.throughput import throughput

            self.item = record.item
            self.speeds.append(throughput(record))
            self.speed = LogMean.of_runs(self.speeds).value
        else:
            self.remark = result(record)


@dataclass(frozen=True, kw_only=True, slots=True)
class Current:
    """The trial that runs."""

    spec: Spec
    place: int
    """Index of its row."""
    started_seconds: float
    """Seconds on the monotonic clock."""
    expected_seconds: float


class TimeLeft:
    """Estimates what remains from what the same configurations took so far.

    Sums are kept up to date, since a plan of thousands would take long to add up at every trial.
    """

    def __init__(self, specs: Sequence[Spec] = ()) -> None:
        self._waiting: Counter[Spec] = Counter()
        self._lasted: dict[Spec, float] = {}
        self._known_seconds = 0.0
        """Sum over the waiting trials whose configuration has run."""
        self._unknown = 0
        """Number of the other waiting trials."""
        self._measured = 0
        self._measured_seconds = 0.0
        self.planned(specs)

    def planned(self, specs: Sequence[Spec]) -> None:
        """These are to run next, and no others."""
        self._waiting = Counter(spec.configuration for spec in specs)
        self._known_seconds, self._unknown = 0.0, 0
        for configuration, count in self._waiting.items():
            self._count(configuration, count)

    def finished(self, record: Record) -> None:
        configuration = spec_of(record).configuration
        waiting = self._waiting[configuration]
        # All that wait are taken out at the old duration and put back at the new one.
        self._count(configuration, -waiting)
        self._lasted[configuration] = record.duration_seconds
        self._waiting[configuration] = max(waiting - 1, 0)
        self._count(configuration, self._waiting[configuration])
        if record.status is not Status.SKIPPED:
            self._measured += 1
            self._measured_seconds += record.duration_seconds

    def _count(self, configuration: Spec, trials: int) -> None:
        if configuration in self._lasted:
            self._known_seconds += trials * self._lasted[configuration]
        else:
            self._unknown += trials

    def seconds(self) -> float | None:
        """None until a trial has been measured."""
        if not self._measured:
            return None
        return self._known_seconds + self._unknown * self._typical_seconds()

    def expected_seconds(self, spec: Spec) -> float:
        """Seconds of one trial: those of the last of its configuration, or of a typical one."""
        return self._lasted.get(spec.configuration, self._typical_seconds())

    def _typical_seconds(self) -> float:
        return self._measured_seconds / self._measured if self._measured else 0.0


class ProgressState:
    """The rows of a sweep and the trial that runs; hears of every trial, as reporters do."""

    def __init__(self, *, grows: bool = False, noun: str = "trial") -> None:
        """`grows` if more repetitions may follow those that are planned; each is a `noun`."""
        self.rows: list[Row] = []
        self.current: Current | None = None
        self.latest = 0
        """Index of the row that ran last."""
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
            row.planned = max(row.planned, spec.repetition + 1)
        self.planned_in_all = self.done + len(specs)
        self._time_left.planned(specs)
        self._seconds_left = self._time_left.seconds()

    def started(self, spec: Spec) -> None:
        """A trial has started now."""
        self.stopped()
        place = self.latest = self._place(spec)
        self.rows[place].running = True
        expected = self._time_left.expected_seconds(spec)
        self.current = Current(
            spec=spec,
            place=place,
            started_seconds=monotonic(),
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
        row.planned = max(row.planned, spec.repetition + 1)
        row.add(record)
        self.done += 1
        self.planned_in_all = max(self.planned_in_all, self.done)
        self._time_left.finished(record)
        self._seconds_left = self._time_left.seconds()

    def elapsed_seconds(self) -> float:
        """Seconds that the current trial has run; 0 if none runs."""
        return monotonic() - self.current.started_seconds if self.current else 0.0

    def seconds_left(self) -> float | None:
        """Seconds until all that is planned is done; None until a trial has been measured."""
        if self._seconds_left is None or self.current is None:
            return self._seconds_left
        return self._seconds_left - min(self.elapsed_seconds(), self.current.expected_seconds)

    def _place(self, spec: Spec) -> int:
        place = self._places.get(spec.configuration)
        if place is None:
            place = self._places[spec.configuration] = len(self.rows)
            work = spec.work if isinstance(spec, TrialSpec) else ""
            self.rows.append(Row(label=spec.label, work=work))
        return place
