"""Timing a run of consecutive steps, and when a run of variable length is long enough.

Inside a window nothing is printed, logged, read back from the device or garbage-collected. On the
CPU a step ends when its Python call returns; on CUDA an event is recorded after it and read when
the window is over, so that the host may run ahead as it does in training.
"""

from __future__ import annotations

import gc
import math
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from time import perf_counter
from typing import Protocol, TypeVar

import torch

from dpbench.measure.rank_group import RankGroup
from dpbench.specs import TrialSpec
from dpbench.specs.shares import split_evenly
from dpbench.specs.trial import FEWEST_PRECISE_STEPS
from dpbench.temporary import no_garbage_collection

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timing:
    """The clock readings of one window."""

    start_seconds: float
    seconds: float
    step_seconds: tuple[float, ...]
    usage: Usage


class Clock(Protocol):
    """Records the ends of steps."""

    def mark(self) -> None: ...

    def read(self, before: Usage) -> Timing:
        """Wait for the device; `before` is the usage at the start."""
        ...


class HostClock:
    """Step ends on the CPU's monotonic clock."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        self._marks.append(perf_counter())

    def read(self, before: Usage) -> Timing:
        marks = self._marks
        steps = tuple(end - start for start, end in pairwise(marks))
        return Timing(marks[0], marks[-1] - marks[0], steps, usage() - before)


class CudaClock:
    """Step ends as CUDA events of the current stream; the window's ends on the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._start = 0.0

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        if not self._events:
            self._start = perf_counter()
        self._events.append(event)

    def read(self, before: Usage) -> Timing:
        torch.cuda.synchronize(self._device)
        seconds = perf_counter() - self._start
        events = self._events
        steps = tuple(a.elapsed_time(b) / 1e3 for a, b in pairwise(events))
        return Timing(self._start, seconds, steps, usage() - before)


def time_steps(
    step: Callable[[T], None], inputs: Iterable[T], device: torch.device, ranks: RankGroup
) -> Timing:
    """Call step(x) for each x of `inputs` between two barriers, and time each call."""
    clock: Clock = HostClock() if device.type == "cpu" else CudaClock(device)
    mark = clock.mark
    with between_barriers(device, ranks):
        before = usage()
        mark()
        for value in inputs:
            step(value)
            mark()
        return clock.read(before)


def joined_timing(segments: Sequence[Timing]) -> Timing:
    """Join several windows into one: the time between them is in none of its numbers."""
    return Timing(
        start_seconds=segments[0].start_seconds,
        seconds=sum(segment.seconds for segment in segments),
        step_seconds=tuple(step for segment in segments for step in segment.step_seconds),
        usage=Usage(
            sum(segment.usage.cpu_seconds for segment in segments),
            sum(segment.usage.page_faults for segment in segments),
        ),
    )


@contextmanager
def between_barriers(device: torch.device, ranks: RankGroup) -> Iterator[None]:
    """A context that all ranks start together, with idle devices and without garbage collection."""
    gc.collect()  # a collection within one implementation's window would be charged to it
    with no_garbage_collection():
        synchronize(device)
        ranks.barrier()
        yield
        ranks.barrier()


def synchronize(device: torch.device) -> None:
    """Wait until the device has no work left."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters of getrusage, or their differences."""

    cpu_seconds: float
    page_faults: int
    """Minor page faults: pages that the kernel had to map and clear, without reading a disk."""

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(self.cpu_seconds - earlier.cpu_seconds, self.page_faults - earlier.page_faults)


def usage() -> Usage:
    """Counters since the process began; a call takes about a microsecond."""
    counted = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(counted.ru_utime + counted.ru_stime, counted.ru_minflt)


BATCHES = 20
GROWTH = 1.5
T_QUANTILE = 2.0930240544
"""Half-width of a two-sided 95 % t interval in standard errors, at 19 degrees of freedom."""


def precision_check_steps(most: int, period: int = 1) -> Iterator[int]:
    """Numbers of steps after which to check whether a window may end, the last being `most`.

    It may end when the 95 % interval of its mean step, from 20 batch means, is narrow enough.
    Checking after every step would stop at lucky moments, so it is checked only at sizes a factor
    1.5 apart, from 100 steps on: a nominal 95 % interval then keeps a coverage of 0.92 to 0.94 for
    steps with a first-order autocorrelation of up to 0.8, against 0.86 to 0.90 if checked every 5 %
    from 20 steps on.

    All others are whole batches of whole periods, where `period` is the number of steps between two
    parameter averages: 100, 160, 240, 360, … for a period of 1.
    """
    unit = BATCHES * period
    steps = _round_up(FEWEST_PRECISE_STEPS, unit)
    while steps < most:
        yield steps
        steps = _round_up(GROWTH * steps, unit)
    yield most


SEGMENTS = 4
SHORTEST_SEGMENT = 5
"""Least steps of a segment, as the first step of each finds an idle device and cold caches."""


def segment_sizes(trial: TrialSpec) -> Iterator[int]:
    """Steps of the segments of a trial's timed window, between which steps without synchronization
    are timed; each but the first may be left out in precision mode."""
    if trial.precision is None:
        count = max(1, min(SEGMENTS, trial.timed_steps // SHORTEST_SEGMENT))
        yield from split_evenly(trial.timed_steps, count)
        return
    taken = 0
    for steps in precision_check_steps(trial.timed_steps, trial.sync_every):
        yield steps - taken
        taken = steps


def relative_half_width(step_seconds: Sequence[float]) -> float:
    """Half-width of the 95 % interval of the mean step ÷ that mean, from equal batches."""
    size = len(step_seconds) // BATCHES
    means = [fmean(step_seconds[i * size : (i + 1) * size]) for i in range(BATCHES)]
    return T_QUANTILE * stdev(means) / math.sqrt(BATCHES) / fmean(means)


def _round_up(steps: float, unit: int) -> int:
    return math.ceil(steps / unit) * unit
