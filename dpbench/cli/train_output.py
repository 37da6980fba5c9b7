"""Who hears of a running training: lines for people, JSON for programs, a bar on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dpbench.cli import train_words as words
from dpbench.cli.messages import say
from dpbench.cli.terminal import REDRAWS_PER_SECOND, can_draw
from dpbench.cli.trial_words import left
from dpbench.training.events import (
    EpochLine,
    Event,
    Finished,
    Note,
    Started,
    StepLine,
    to_line,
)
from dpbench.training_spec import TrainingSpec


class Listener(Protocol):
    """Hears of every event of a training, in their order, from one thread at a time."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def hear(self, event: Event) -> None: ...


class Silent:
    """Passes on nothing but notes, which the user must hear."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hear(self, event: Event) -> None:
        if isinstance(event, Note):
            say(event.text)


class JsonLines(Silent):
    """Every event as it is in the log, on stdout."""

    def hear(self, event: Event) -> None:
        print(to_line(event), flush=True)


class Lines(Silent):
    """A line for each event."""

    def __init__(self, spec: TrainingSpec, write: Callable[[str], None]) -> None:
        self._spec = spec
        self._write = write
        self._started: Started | None = None

    def hear(self, event: Event) -> None:
        if isinstance(event, Started):
            self._started = event
            self._write(words.started(event, self._spec))
        elif isinstance(event, StepLine) and self._started is not None:
            self._write(words.step(event, self._started))
        elif isinstance(event, EpochLine):
            self._write(words.epoch(event))
        else:
            super().hear(event)


class Live(Lines):
    """The same above a bar, which shows how far the training is."""

    def __init__(self, spec: TrainingSpec, steps: int, console: Console) -> None:
        super().__init__(spec, lambda line: console.print(line, markup=False, soft_wrap=True))
        self._first_step = 0
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/" + str(spec.epochs)),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps{task.fields[rest]}"),
            console=console,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._progress.add_task("", total=steps, epoch=1, rest="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def hear(self, event: Event) -> None:
        super().hear(event)
        if isinstance(event, Started):
            self._first_step = event.step
            self._progress.update(self._task, completed=event.step, epoch=event.epoch)
        elif isinstance(event, StepLine) and self._started is not None:
            rest = f", {words.rate(event.samples_per_second, self._started)}, {self._left(event)}"
            self._progress.update(self._task, completed=event.step, epoch=event.epoch, rest=rest)

    def _left(self, event: StepLine) -> str:
        total = self._progress.tasks[0].total or event.step
        per_step = event.elapsed_seconds / (event.step - self._first_step)
        return left(per_step * (total - event.step))


def listener(
    spec: TrainingSpec, steps: int, *, quiet: bool, json_lines: bool, stream: IO[str]
) -> Listener:
    """What fits the options and the terminal; lines go to `stream`."""
    if json_lines:
        return JsonLines()
    if quiet:
        return Silent()
    console = Console(stderr=True, highlight=False)
    if can_draw(console) and stream.isatty():
        return Live(spec, steps, console)
    return Lines(spec, lambda line: print(line, file=stream, flush=True))


def result_object(event: Finished, folder: Path) -> dict[str, Any]:
    """The last line of --json: everything, what was not measured as null."""
    return {**asdict(event), "folder": str(folder)}


def print_result(event: Finished, folder: Path) -> None:
    print(json.dumps(result_object(event, folder)), flush=True)
    sys.stdout.flush()
