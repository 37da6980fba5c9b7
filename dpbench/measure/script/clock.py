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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, Literal

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dpbench.measure.device import clock_of, seconds_between, synchronize
from dpbench.measure.nvml import gpu_states
from dpbench.records.trial import GpuState, Window
from dpbench.rendezvous.placement import LOOPBACK
from dpbench.specs import TrialSpec
from dpbench.specs.configuration import MOST_FILLING_STEPS, SHORTEST_SEGMENT
from dpbench.specs.traits import IMPLEMENTATIONS

Mode = Literal["as-is", "no-sync", "cached"]
SEGMENT_SECONDS = 0.1
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
        kept = [k for k, one in enumerate(self.counts) if not one.interrupted]
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
    for each parameter, and "batch" for the samples; `finish` gets the segments of each mode, after
    the last step.
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
        self.same_samples = False
        """See ScriptFacts."""
        self.taken = 0
        """Optimizer steps so far."""
        self.first_step: float | None = None
        """When the first one ended."""
        self.optimizer: torch.optim.Optimizer | None = None
        self.device = torch.device("cpu")
        self._now: Callable[[], Any] = perf_counter
        self.synchronizes = self.loads = False
        """Whether a forward pass has prepared a reduction, and a DataLoader has fed a step."""
        self.counts_samples = False
        """Whether a DataLoader feeds the steps of some rank."""
        self.counts = StepCounts()
        """Counts since the last step."""
        self.measured: list[ScriptSegment] = []
        """The segments of whole rounds."""
        self.queued = 0
        """Batches that the loader's workers may have ready."""
        self._course: Iterator[ScriptSegment] = self._plan_course()
        self.segment = next(self._course)

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
        segment.counts.append(self.counts)
        self.counts = StepCounts()
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
        found = self.store.exchange(**values)
        if any("over" in one for one in found):
            raise ScriptOver
        return found

    def _plan_course(self) -> Iterator[ScriptSegment]:
        """The segments, from the first step on; a round is measured when it is whole."""
        warmup, steps = self.trial.warmup_steps, self.trial.timed_steps
        together = IMPLEMENTATIONS[self.trial.implementation].communicates
        untimed = warmup - warmup // 2
        yield ScriptSegment("as-is", max(untimed, 1))
        earlier = self._inspect().get("batch") if together else None
        pace = ScriptSegment("as-is", max(warmup // 2, 1))
        yield pace
        found = self._exchange(
            pace=median(pace.step_seconds),
            syncs=self.synchronizes,
            loads=self.loads,
            **(self._inspect() if together else {}),
        )
        first = found[0].get("digests", {})
        self.differing = next(
            (n for n in first if any(one["digests"].get(n, first[n]) != first[n] for one in found)),
            None,
        )
        batch = found[0].get("batch")
        is_same = len(found) > 1 and all(one.get("batch") == batch for one in found)
        self.same_samples = is_same and None not in (batch, earlier) and batch != earlier
        self.counts_samples = any(one["loads"] for one in found)
        size = math.ceil(SEGMENT_SECONDS / max(one["pace"] for one in found))
        size = min(max(size, SHORTEST_SEGMENT), steps // 2)
        modes: list[Mode] = ["as-is"]
        if together:
            modes += ["no-sync"] * (self.store.size > 1 and all(one["syncs"] for one in found))
            modes += ["cached"] * all(one["loads"] for one in found)
        done, seconds, filled = 0, 0.0, self.trial.window_seconds or 0.0
        while done < steps or (seconds < filled and done < MOST_FILLING_STEPS):
            ahead: list[ScriptSegment] = []
            for mode in (*modes, *reversed(modes)):
                if ahead and ahead[-1].mode == "cached" != mode and self.queued:
                    # Workers have filled their queue meanwhile: its batches would cost nothing.
                    yield ScriptSegment("as-is", self.queued)
                ahead.append(ScriptSegment(mode, size))
                yield ahead[-1]
            self.measured += ahead
            done += 2 * size
            as_is = sum(one.seconds for one in ahead if one.mode == "as-is")
            seconds += max(one["seconds"] for one in self._exchange(seconds=as_is))


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
