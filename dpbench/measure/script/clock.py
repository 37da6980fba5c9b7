"""The clock of a script's steps, and what is counted in each of them.

A step ends when the script's first optimizer has stepped. Segments of steps are timed between
barriers with idle devices. The script's own garbage collection, printing and logging stay as they
are: they are part of it.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from dpbench.measure.device import clock_of, seconds_between
from dpbench.measure.nvml import gpu_states
from dpbench.parallel.devices import synchronize
from dpbench.records.trial import GpuState, Mode, Window


@dataclass
class StepCounts:
    """Counts of one step."""

    samples: int = 0
    """Those of batches that feed steps."""
    repeated_batches: int = 0
    """Batches that were handed out again."""
    queued_batches: int = 0
    """Batches that the workers of a loader may have ready, if one was started."""
    forwards: int = 0
    """Forward passes with gradients."""
    reducing_forwards: int = 0
    """Those of them in which the script prepared a reduction."""
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


class StepClock:
    """Times the segments of a course, one after the other, while the script takes its steps."""

    def __init__(self, course: Iterable[ScriptSegment]) -> None:
        self._course = iter(course)
        self.segment = next(self._course)
        """The segment that is under way."""
        self.counts = StepCounts()
        """Counts of the step that is under way."""
        self.steps = 0
        """Optimizer steps so far."""
        self.first_step: float | None = None
        """When the first one ended."""
        self.optimizer: torch.optim.Optimizer | None = None
        """The one whose steps count."""
        self.device = torch.device("cpu")
        self._now: Callable[[], Any] = perf_counter

    def step_ended(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note that an optimizer has stepped; returns whether that was the last step to time."""
        if self.optimizer is None:
            self.optimizer = optimizer
            self.first_step = perf_counter()
            self.device = optimizer.param_groups[0]["params"][0].device
            self._now = clock_of(self.device)
        elif optimizer is not self.optimizer:
            return False
        segment = self.segment
        segment.readings.append(self._now())
        segment.counts.append(self.counts)
        self.counts = StepCounts()
        self.steps += 1
        return len(segment.counts) == segment.steps and not self._begin_next()

    def _begin_next(self) -> bool:
        """End this segment and begin the next; returns False if there is none."""
        segment = self.segment
        synchronize(self.device)
        segment.seconds = perf_counter() - segment.start
        segment.cpu_seconds = _cpu_seconds() - segment.cpu_seconds
        segment.gpu = gpu_states(self.device)
        following = next(self._course, None)
        if following is None:
            return False
        self.segment = following
        synchronize(self.device)
        following.cpu_seconds = _cpu_seconds()
        following.start = perf_counter()
        following.readings.append(self._now())
        return True


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
