"""Timing a segment: consecutive steps of one mode.

On the CPU a step ends when its Python call returns; on CUDA an event is recorded after it and read
when the segment is over, so that the host may run ahead as it does in training.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from resource import RUSAGE_SELF, getrusage
from time import perf_counter

import torch

from dpbench.measure.device import clock_of, seconds_between
from dpbench.measure.nvml import gpu_states
from dpbench.parallel.devices import synchronize
from dpbench.records.trial import Window
from dpbench.rendezvous.process_group import RankGroup
from dpbench.temporary import no_garbage_collection


class SegmentTimer:
    """Times consecutive steps on the first of some devices; the first step begins now."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        """The devices are idle."""
        self._devices = devices
        self._usage = getrusage(RUSAGE_SELF)  # takes about a microsecond
        self._now = clock_of(devices[0])
        self._start = perf_counter()
        self._readings = [self._now()]

    def step_ended(self) -> None:
        """Read the clock after a step."""
        self._readings.append(self._now())

    def end(self, samples: int) -> Window:
        """Wait for the devices; returns the window of these steps, on so many samples."""
        synchronize(*self._devices)
        end, before = perf_counter(), self._usage
        after = getrusage(RUSAGE_SELF)
        gpu = gpu_states(self._devices[0])  # at once, before the GPU waits for other ranks
        if self._devices[0].type == "cpu":  # the same clock: the steps add up to the whole
            self._start, end = self._readings[0], self._readings[-1]
        return Window(
            seconds=end - self._start,
            step_seconds=tuple(seconds_between(a, b) for a, b in pairwise(self._readings)),
            cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            page_faults=after.ru_minflt - before.ru_minflt,
            samples=samples,
            gpu=gpu,
        )


@contextmanager
def between_barriers(devices: Sequence[torch.device], ranks: RankGroup) -> Iterator[None]:
    """A context that all ranks start together, with idle devices and without garbage collection."""
    gc.collect()  # a collection within one implementation's window would be charged to it
    with no_garbage_collection():
        synchronize(*devices)
        ranks.barrier()
        yield
        ranks.barrier()
