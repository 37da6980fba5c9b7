"""Who hears of a running training: lines for people, JSON for programs, a bar on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dpbench import units
from dpbench.messages import say
from dpbench.report.progress import training_words as words
from dpbench.report.progress.terminal import REDRAWS_PER_SECOND, can_draw
from dpbench.report.progress.words import left
from dpbench.specs.training import TrainingRun, TrainingSpec
from dpbench.training.events import (
    EpochLine,
    Event,
    Finished,
    Note,
    Started,
    StepLine,
    to_line,
)


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


class TrainingNotes:
    """Passes on nothing but notes, which the user must hear."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hear(self, event: Event) -> None:
        if isinstance(event, Note):
            say(event.text)


class JsonLines(TrainingNotes):
    """Every event as it is in the log, on stdout."""

    def hear(self, event: Event) -> None:
        print(to_line(event), flush=True)


class TrainingLines(TrainingNotes):
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


class TrainingBar(TrainingLines):
    """Training lines above a progress bar."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOutput:
    """The printed output of a training, and its destination."""

    dry_run: bool = False
    memory: bool = False
    json_result: bool = False
    json_lines: bool = False
    quiet: bool = False
    to_stderr: bool = False

    @classmethod
    def of(cls, typed: Mapping[str, Any]) -> TrainOutput:
        """The output according to the command's parameters of these names."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: typed[name] for name in names if name in typed})

    @property
    def stream(self) -> IO[str]:
        """The stream for what people read."""
        apart = self.json_result or self.json_lines or self.to_stderr
        return sys.stderr if apart else sys.stdout

    def write(self, line: str) -> None:
        print(line, file=self.stream, flush=True)

    @property
    def is_introduced(self) -> bool:
        """Whether the size of a step is said, and what else is worth knowing before it."""
        return not (self.quiet or self.json_lines)

    def introduce(
        self,
        spec: TrainingSpec,
        run: TrainingRun,
        steps_per_epoch: int,
        contents: Callable[[], str],
    ) -> None:
        """Says how large a step is, before anything runs; `contents` says what a sample holds."""
        if not self.is_introduced:
            return
        most = run.max_steps
        end = "" if most is None else f", at most {units.counted(most, 'step')}"
        size = words.batch(spec, steps_per_epoch, contents())
        self.write(f"{size}, {units.counted(spec.epochs, 'epoch')}{end}")

    def listener(self, spec: TrainingSpec, run: TrainingRun, steps_per_epoch: int) -> Listener:
        """A listener that suits the options and the terminal."""
        if self.json_lines:
            return JsonLines()
        if self.quiet:
            return TrainingNotes()
        console = Console(stderr=True, highlight=False)
        if can_draw(console) and self.stream.isatty():
            steps = steps_per_epoch * spec.epochs
            most = steps if run.max_steps is None else min(steps, run.max_steps)
            return TrainingBar(spec, most, console)
        return TrainingLines(spec, self.write)

    def conclude(self, finished: Finished, spec: TrainingSpec, folder: Path) -> None:
        """Prints the result."""
        if not self.json_lines:
            self.write(words.finished(finished, spec.epochs, str(folder)))
        if self.memory:
            for line in words.memory(finished, spec.devices):
                self.write(line)
        if self.json_result:
            print(json.dumps(result_object(finished, folder)), flush=True)


def result_object(event: Finished, folder: Path) -> dict[str, Any]:
    """The last line of --json: everything, what was not measured as null."""
    return {**asdict(event), "folder": str(folder)}
