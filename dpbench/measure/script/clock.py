"""The clock of a script's steps: which steps are measured, and what they do differently.

A step ends when the script's first optimizer has stepped. After the warm-up, short segments of
steps take turns, as a palindrome, between barriers with idle devices:

    as-is     the script as it is
    no-sync   DistributedDataParallel does not average gradients
    cached    the DataLoader hands out its last batch again and again

The script's own garbage collection, printing and logging stay as they are: they are part of it.
"""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, Literal

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dpbench.measure.device import clock_of, seconds_between
from dpbench.measure.nvml import gpu_states
from dpbench.parallel.devices import synchronize
from dpbench.records.trial import GpuState, Window
from dpbench.rendezvous.placement import LOOPBACK
from dpbench.specs import TrialSpec
from dpbench.specs.configuration import MAX_FILLING_STEPS, MIN_SEGMENT
from dpbench.specs.traits import IMPLEMENTATIONS

Mode = Literal["as-is", "no-sync", "cached"]
SEGMENT_SECONDS = 0.1
QUEUE_LIMIT = 64
"""Most steps in which a queue of batches is emptied."""
FOREVER = timedelta(days=7)
"""The trial's time limit ends a wait, and says what for."""


@dataclass
class StepCounts:
    """Counts of one step."""

    samples: int = 0
    forwards: int = 0
    reducing_forwards: int = 0
    """Forward passes that prepared a reduction."""
    interrupted: bool = False
    """Whether an epoch ended, or a loader that feeds no step was read."""


@dataclass
class ScriptSegment:
    """Consecutive steps of one mode, from before the first until `window` says what they took."""

    mode: Mode
    steps: int
    start: float = 0.0
    readings: list[Any] = field(default_factory=list)
    """The clock at the start and after each step."""
    counts: list[StepCounts] = field(default_factory=list)
    """One for each step so far."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    gpu: tuple[GpuState, ...] = ()
    """State of the GPU at its end."""
    repeated: int = 0
    """Batches that were handed out again."""

    @property
    def step_seconds(self) -> list[float]:
        return [seconds_between(before, after) for before, after in pairwise(self.readings)]

    def window(self, *, counts_samples: bool) -> Window:
        """The steps that were not interrupted, or all if there are no others; each counts as one
        sample unless it `counts_samples`."""
        step_seconds = self.step_seconds
        kept = [k for k, counts in enumerate(self.counts) if not counts.interrupted]
        kept = kept or [*range(len(step_seconds))]
        seconds = [step_seconds[k] for k in kept]
        # On CUDA the host times the segment and the device its steps.
        share = sum(seconds) / sum(step_seconds)
        return Window(
            start_seconds=self.start,
            seconds=self.seconds * share,
            step_seconds=tuple(seconds),
            samples=sum(self.counts[k].samples for k in kept) if counts_samples else len(kept),
            cpu_seconds=self.cpu_seconds * share,
            gpu=self.gpu,
        )


class ScriptOver(Exception):
    """The script of some rank has ended."""


class RankStore:
    """The launcher's store, by which the ranks of the trial exchange values: the script's own
    process group is not touched, and it need not have one. Copies that train alone start together,
    too."""

    def __init__(self, rank: int, size: int, port: int) -> None:
        self.rank, self.size, self._count = rank, size, 0
        self._store = (
            TCPStore(LOOPBACK, port, is_master=False, wait_for_workers=False, timeout=FOREVER)
            if size > 1
            else None
        )

    def exchange(self, **values: Any) -> list[dict[str, Any]]:
        """The values of all ranks, once all have called this: a barrier."""
        if self._store is None:
            return [values]
        self._count += 1
        keys = [f"dpbench {self._count} {rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], json.dumps(values))
        self._store.wait(keys)
        return [json.loads(self._store.get(key)) for key in keys]


class StepClock:
    """Hears of the script's steps, batches and forward passes, and ends the measurement.

    `inspect` is called in the warm-up and after it: numbers to compare ranks by, "digests" with one
    for each parameter, and "batch" for the samples; and whether there are "unused" parameters.
    `finish` gets the segments of each mode, after the last step.
    """

    def __init__(
        self,
        trial: TrialSpec,
        store: RankStore,
        inspect: Callable[[], dict[str, Any]],
        finish: Callable[[list[ScriptSegment]], None],
    ) -> None:
        self.trial, self.store = trial, store
        self._inspect, self._finish = inspect, finish
        self.differing: str | None = None
        """The first parameter that differs between ranks after the warm-up."""
        self.has_unused = False
        """Whether some parameter had no gradient after the warm-up."""
        self.same_samples = False
        """See ScriptFacts."""
        self.taken = 0
        """Optimizer steps so far."""
        self.first_step: float | None = None
        """When the first one ended."""
        self.optimizer: torch.optim.Optimizer | None = None
        self.device = torch.device("cpu")
        self._now: Callable[[], Any] = perf_counter
        self._synchronizes = self._loads = False
        """Whether a forward pass has prepared a reduction, and a DataLoader has fed a step."""
        self.counts_samples = False
        """Whether a DataLoader feeds the steps of some rank."""
        self._counts = StepCounts()
        """Counts since the last step."""
        self.measured: list[ScriptSegment] = []
        """The segments of whole rounds."""
        self._queued = 0
        """Batches that the loader's workers may have ready."""
        self._course: Iterator[ScriptSegment] = self._plan_course()
        self.segment = next(self._course)

    def forward_seen(self, *, reduces: bool) -> None:
        """Count a forward pass with gradients; `reduces` if the script prepared a reduction in
        it."""
        self._counts.forwards += 1
        self._counts.reducing_forwards += reduces
        self._synchronizes |= reduces

    def batch_seen(self, samples: int) -> None:
        """Count the samples of a batch that feeds a step."""
        self._counts.samples += samples

    def batch_repeated(self) -> None:
        """Count a batch that was handed out again."""
        self.segment.repeated += 1

    def loader_queued(self, batches: int) -> None:
        """Note that a loader's workers may have this many batches ready."""
        self._queued = max(self._queued, min(batches, QUEUE_LIMIT))

    def loader_feeds_steps(self) -> None:
        """Note that a DataLoader feeds the steps."""
        self._loads = True

    def step_interrupted(self) -> None:
        """Note that an epoch ended, or that a loader that feeds no step was read."""
        self._counts.interrupted = True

    def step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the end of a step, and begin the next segment if it was the last of this one."""
        if self.optimizer is None:
            self.optimizer = optimizer
            self.first_step = perf_counter()
            self.device = optimizer.param_groups[0]["params"][0].device
            self._now = clock_of(self.device)
        elif optimizer is not self.optimizer:
            return
        segment = self.segment
        segment.readings.append(self._now())
        segment.counts.append(self._counts)
        self._counts = StepCounts()
        self.taken += 1
        if len(segment.counts) == segment.steps:
            self._end_segment()

    def _end_segment(self) -> None:
        segment = self.segment
        synchronize(self.device)
        segment.seconds = perf_counter() - segment.start
        segment.cpu_seconds = _cpu_seconds() - segment.cpu_seconds
        segment.gpu = gpu_states(self.device)
        try:
            following = next(self._course, None)
            if following is not None:
                self._exchange()
        except ScriptOver:
            following = None
        if following is None:
            self._finish(self.measured)
            return
        self.segment = following
        synchronize(self.device)
        following.cpu_seconds = _cpu_seconds()
        following.start = perf_counter()
        following.readings.append(self._now())

    def script_ended(self) -> None:
        """Hand over the whole rounds, as the script takes no more steps; the other ranks, whose
        scripts end as well, do the same."""
        self.store.exchange(over=True)
        self._finish(self.measured)

    def _exchange(self, **values: Any) -> list[dict[str, Any]]:
        reports = self.store.exchange(**values)
        if any("over" in report for report in reports):
            raise ScriptOver
        return reports

    def _plan_course(self) -> Iterator[ScriptSegment]:
        """The segments, from the first step on; a round is measured when it is whole."""
        warmup, steps = self.trial.warmup_steps, self.trial.timed_steps
        together = IMPLEMENTATIONS[self.trial.implementation].communicates
        untimed = warmup - warmup // 2
        yield ScriptSegment("as-is", max(untimed, 1))
        earlier = self._inspect().get("batch") if together else None
        timed = ScriptSegment("as-is", max(warmup // 2, 1))
        yield timed
        inspected = self._inspect() if together else {}
        self.has_unused = inspected.pop("unused", False)
        reports = self._exchange(
            pace=median(timed.step_seconds),
            syncs=self._synchronizes,
            loads=self._loads,
            **inspected,
        )
        self.differing = _first_differing([report.get("digests", {}) for report in reports])
        batch = reports[0].get("batch")
        is_same = len(reports) > 1 and all(report.get("batch") == batch for report in reports)
        self.same_samples = is_same and None not in (batch, earlier) and batch != earlier
        self.counts_samples = any(report["loads"] for report in reports)
        size = math.ceil(SEGMENT_SECONDS / max(report["pace"] for report in reports))
        size = min(max(size, MIN_SEGMENT), steps // 2)
        modes: list[Mode] = ["as-is"]
        if together:
            synchronizes = self.store.size > 1 and all(report["syncs"] for report in reports)
            modes += ["no-sync"] * synchronizes
            modes += ["cached"] * all(report["loads"] for report in reports)
        done, seconds, filled = 0, 0.0, self.trial.window_seconds or 0.0
        while done < steps or (seconds < filled and done < MAX_FILLING_STEPS):
            ahead: list[ScriptSegment] = []
            for mode in (*modes, *reversed(modes)):
                if ahead and ahead[-1].mode == "cached" != mode and self._queued:
                    # Workers have filled their queue meanwhile: its batches would cost nothing.
                    yield ScriptSegment("as-is", self._queued)
                ahead.append(ScriptSegment(mode, size))
                yield ahead[-1]
            self.measured += ahead
            done += 2 * size
            as_is = sum(segment.seconds for segment in ahead if segment.mode == "as-is")
            seconds += max(report["seconds"] for report in self._exchange(seconds=as_is))


def _first_differing(digests: Sequence[Mapping[str, int]]) -> str | None:
    """The first parameter of rank 0 that has another digest on some rank."""
    for name, number in digests[0].items():
        if any(own.get(name, number) != number for own in digests):
            return name
    return None


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
