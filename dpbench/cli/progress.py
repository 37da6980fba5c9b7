"""Progress on stderr: a live view on a terminal, a line per trial anywhere else.

The live view redraws twice a second at the most, so that the launching process stays under two
percent of a core while a timed window runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dpbench import units
from dpbench.collectives import CollectiveRecord, CollectiveSpec
from dpbench.records import Status, TrialRecord
from dpbench.specs import TrialSpec

REDRAWS_PER_SECOND = 2

Spec = TrialSpec | CollectiveSpec
Record = TrialRecord | CollectiveRecord


class Reporter(Protocol):
    """Hears of every trial of a sweep, or measurement of a collective."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def started(self, spec: Spec) -> None: ...

    def finished(self, record: Record) -> None: ...


class TimeLeft:
    """Estimates what remains from what the same configurations took so far."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self._waiting = list(specs)
        self._seconds: dict[Spec, float] = {}
        self._measured: list[float] = []

    def finished(self, record: Record) -> None:
        spec = _spec_of(record)
        self._waiting.remove(spec)
        self._seconds[spec.configuration] = record.duration_seconds
        if record.status is not Status.SKIPPED:
            self._measured.append(record.duration_seconds)

    def seconds(self) -> float | None:
        """None until a trial has been measured."""
        if not self._measured:
            return None
        typical = sum(self._measured) / len(self._measured)
        return sum(self._seconds.get(spec.configuration, typical) for spec in self._waiting)


def reporter(specs: Sequence[Spec], *, quiet: bool) -> Reporter:
    """The reporter that fits stderr."""
    console = Console(stderr=True, highlight=False)
    if quiet:
        return Silent()
    lives = console.is_terminal and not console.is_dumb_terminal
    return Live(console, specs) if lives else Lines(console, specs)


class Silent:
    """Says nothing; failures are in the table."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def started(self, spec: Spec) -> None:
        pass

    def finished(self, record: Record) -> None:
        pass


class Lines(Silent):
    """A line per trial, when it is over."""

    def __init__(self, console: Console, specs: Sequence[Spec]) -> None:
        self._console = console
        self._total = len(specs)
        self._done = 0
        self._time_left = TimeLeft(specs)

    def finished(self, record: Record) -> None:
        self._done += 1
        self._time_left.finished(record)
        left = self._time_left.seconds()
        rest = f", {_left(left)}" if left and self._done < self._total else ""
        line = f"[{self._done}/{self._total}] {describe(record)}{rest}"
        self._console.print(line, markup=False, soft_wrap=True)


class Live(Silent):
    """One line that changes: the trial under way, done and left, the last throughput."""

    def __init__(self, console: Console, specs: Sequence[Spec]) -> None:
        self._time_left = TimeLeft(specs)
        self._progress = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("[bold]{task.description}"),
            TextColumn("[dim]{task.fields[last]}"),
            console=console,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,
        )
        self._task = self._progress.add_task("", total=len(specs), left="", last="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def started(self, spec: Spec) -> None:
        self._progress.update(self._task, description=escape(_name(spec)))

    def finished(self, record: Record) -> None:
        self._time_left.finished(record)
        left = self._time_left.seconds()
        self._progress.update(
            self._task,
            advance=1,
            left="" if left is None else _left(left),
            last=escape(f"last: {_result(record)}"),
        )
        if record.status not in (Status.COMPLETED, Status.SKIPPED):
            self._progress.console.print(describe(record), markup=False, soft_wrap=True)


def _left(seconds: float) -> str:
    return f"{units.seconds(seconds)} left" if seconds >= 1 else "under 1 s left"


def describe(record: Record) -> str:
    """Writes "ddp/gloo ×2, batch 32, repetition 1: 3,936 images/s (1.2 s)"."""
    took = "" if record.status is Status.SKIPPED else f" ({units.seconds(record.duration_seconds)})"
    return f"{_name(_spec_of(record))}: {_result(record)}{took}"


def _spec_of(record: Record) -> Spec:
    return record.trial if isinstance(record, TrialRecord) else record.collective


def _name(spec: Spec) -> str:
    return f"{spec.label}, repetition {spec.repetition + 1}"


def _result(record: Record) -> str:
    if record.status is not Status.COMPLETED:
        return f"{record.status.words}: {record.reason}"
    if isinstance(record, CollectiveRecord):
        return _slowest_ranks_median(record)
    from dpbench.analysis.throughput import throughput

    return f"{throughput(record):,.0f} {record.item}/s"


def _slowest_ranks_median(record: CollectiveRecord) -> str:
    """Of the smallest and of the largest message: "4 B in 265 µs, 244.1 MiB in 98 ms"."""
    ends = {0, len(record.collective.sizes_bytes) - 1}
    return ", ".join(
        f"{units.bytes_binary(record.collective.sizes_bytes[end])} in "
        f"{units.seconds(max(median(rank.timings[end].seconds) for rank in record.ranks))}"
        for end in sorted(ends)
    )
