"""Timing a run of consecutive steps, in segments.

Inside a window nothing is printed, logged, read back from the device or garbage-collected. On the
CPU a step ends when its Python call returns; on CUDA an event is recorded after it and read when
the window is over, so that the host may run ahead as it does in training.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from resource import RUSAGE_SELF, getrusage
from time import perf_counter

import torch

from dpbench.data.sharding import split_by_shares
from dpbench.measure.device import clock_of, seconds_between
from dpbench.measure.nvml import gpu_states
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.step import StepIndices
from dpbench.parallel.devices import synchronize
from dpbench.records.trial import Window
from dpbench.specs.trial import MIN_SEGMENT
from dpbench.temporary import no_garbage_collection


def time_steps(
    step: Callable[[StepIndices], torch.Tensor],
    steps: Sequence[StepIndices],
    devices: Sequence[torch.device],
    ranks: RankGroup,
) -> Window:
    """Take each of `steps` between two barriers, and time each; `step` returns its loss.

    The window ends when all `devices` of the process are idle; steps are timed on the first.
    """
    losses = []
    now = clock_of(devices[0])
    with between_barriers(devices, ranks):
        before = getrusage(RUSAGE_SELF)  # takes about a microsecond
        start = perf_counter()
        readings = [now()]
        for indices in steps:
            losses.append(step(indices))
            readings.append(now())
        synchronize(*devices)
        end = perf_counter()
        after = getrusage(RUSAGE_SELF)
        gpu = gpu_states(devices[0])  # at once, before the GPU waits for other ranks
    if devices[0].type == "cpu":  # the same clock: the steps add up to the whole
        start, end = readings[0], readings[-1]
    return Window(
        start_seconds=start,
        seconds=end - start,
        step_seconds=tuple(seconds_between(a, b) for a, b in pairwise(readings)),
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        samples=sum(len(micro_step) for indices in steps for micro_step in indices),
        # A loss of shape (1,) has a backward pass too.
        losses=tuple(torch.stack(losses).flatten().tolist()),
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


SEGMENTS = 4


def segment_sizes(timed_steps: int) -> tuple[int, ...]:
    """Steps of the segments of a timed window, between which steps without synchronization are
    timed."""
    count = max(1, min(SEGMENTS, timed_steps // MIN_SEGMENT))
    return split_by_shares(timed_steps, (1.0,) * count)
