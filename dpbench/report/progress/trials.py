"""Progress on stderr: a bar with the time left on a terminal, a line per trial anywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dpbench import units
from dpbench.analysis.formatting import three_digits
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import Configuration, Labels
from dpbench.specs.collective import CollectiveSpec

REDRAWS_PER_SECOND = 2
PLAIN = Labels()
Trial = Configuration | CollectiveSpec


def can_draw(console: Console) -> bool:
    """Tells whether its cursor can be moved; FORCE_COLOR makes no terminal of a file."""
    return console.file.isatty() and not console.is_dumb_terminal and not console.quiet


def _windows(trial: Trial) -> int:
    return 2 if isinstance(trial, Configuration) and trial.has_unsynced_window else 1


class TrialProgress:
    """Hears of every trial of a sweep, or measurement of a collective; use it as a context."""

    def __init__(
        self, console: Console | None = None, *, quiet: bool = False, noun: str = "trial"
    ) -> None:
        """Prints to the console, stderr unless given; a trial is called `noun`."""
        console = console or Console(stderr=True, highlight=False, quiet=quiet)
        self._draws = can_draw(console)
        self._labels = PLAIN
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            f"{noun}s{{task.fields[rest]}}",
            TextColumn("{task.description}", style="cyan"),
            console=console,
            disable=not self._draws,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._bar.add_task("", total=None, rest="")
        self._planned: Sequence[Trial] = ()
        self._done = 0
        self._took: dict[str, float] = {}
        """Seconds of a window of the last repetition of each label."""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def planned(self, trials: Sequence[Trial], labels: Labels = PLAIN) -> None:
        """These run next, and nothing else until they have ended; `labels` name the trials."""
        self._labels = labels
        self._planned, self._done, self._took = trials, 0, {}
        self._bar.update(self._task, total=len(trials), completed=0, rest="")

    def _name(self, trial: Trial) -> str:
        if isinstance(trial, Configuration):
            return self._labels.label(trial)
        return trial.label

    def started(self, trial: Trial) -> None:
        self._bar.update(self._task, description=escape(self._name(trial)))

    def finished(self, record: TrialRecord | CollectiveRecord, version: str = "") -> None:
        """It has ended, of this `version` where several run the same trials."""
        trial = record.configuration if isinstance(record, TrialRecord) else record.spec
        self._took[self._name(trial)] = record.duration_seconds / _windows(trial)
        self._done += 1
        # Rows that have not run are larger than those that have.
        longest = max(self._took.values())
        left = sum(
            self._took.get(self._name(trial), longest) * _windows(trial)
            for trial in self._planned[self._done :]
        )
        rest = f", {units.seconds(ceil(left))} of measuring left" if left else ""
        self._bar.update(self._task, completed=self._done, rest=rest)
        is_complete = record.status is Status.COMPLETED
        # The table has a line for all that are skipped for one reason.
        if record.status is Status.SKIPPED or (self._draws and is_complete):
            return
        took = units.seconds(record.duration_seconds)
        name = f"{version}: {self._name(trial)}" if version else self._name(trial)
        repetition = (record if isinstance(record, TrialRecord) else record.spec).repetition
        line = f"{name}, repetition {repetition + 1}: {_result(record)} ({took})"
        if not self._draws:
            rest = rest if is_complete else ""  # others may be skipped then
            line = f"[{self._done}/{len(self._planned)}] {line}{rest}"
        self._bar.console.print(line, markup=False, soft_wrap=True)  # above the bar, if any


def _result(record: TrialRecord | CollectiveRecord) -> str:
    """Writes "3,936 images/s", or how and why the trial failed."""
    if record.status is not Status.COMPLETED:
        return f"{record.status.words}: {record.reason}"
    if isinstance(record, CollectiveRecord):
        return units.counted(len(record.spec.sizes_bytes), "size")
    # Imported here, as a training reports its progress without the statistics and their numpy.
    from dpbench.analysis.throughput import items_per_second

    return f"{three_digits(items_per_second(record))} {record.facts.item}/s"
