"""One rank's part in measuring one collective: every size is verified, then timed beside a copy.

A sample is timed from a barrier until the device is idle. Calls of less than a millisecond are
timed several at once, so that neither the ranks' uneven start nor the clock's resolution matters.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from dpbench.measure.collective_operation import CollectiveOperation
from dpbench.measure.rank_group import RankGroup, rank_group
from dpbench.measure.window import between_barriers, synchronize
from dpbench.records.collectives import (
    CollectiveSpec,
    RankCollectives,
    SizeTiming,
)

SAMPLE_SECONDS = 1e-3
"""Least duration of a sample."""
SIZE_SECONDS = 0.6
"""Most time for the samples of one size, unless that leaves fewer than FEWEST_SAMPLES."""
FEWEST_SAMPLES = 5
MOST_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class WrongResult:
    """Difference of this rank's result, or None if only another rank's result was wrong."""

    text: str | None


def measure_collective(spec: CollectiveSpec, rank: int) -> RankCollectives | WrongResult:
    """Measure all sizes of `spec` as `rank`; ends at the first size whose result is wrong."""
    device = torch.device(spec.devices[rank])
    torch.set_num_threads(spec.threads_per_replica)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dtype: torch.dtype = getattr(torch, spec.dtype)
    timings, copies = [], []
    with rank_group(spec.backend, spec.group_size) as ranks:
        for nbytes in spec.sizes_bytes:
            operation = CollectiveOperation(spec.collective, nbytes, dtype, device)
            wrong = operation.wrong_result()  # also the first call of the size
            if ranks.largest(wrong is not None):
                return WrongResult(wrong)
            error = operation.largest_error()
            timing = _time(operation, nbytes, spec.samples, device, ranks)
            timings.append(replace(timing, largest_error=error))
            copies.append(_time(_copy(nbytes, device), nbytes, spec.samples, device, ranks))
            del operation  # frees its memory before the next one allocates
    return RankCollectives(
        rank=rank,
        pid=os.getpid(),
        device=str(device),
        host=socket.gethostname(),
        timings=tuple(timings),
        copies=tuple(copies),
    )


def _copy(nbytes: int, device: torch.device) -> Callable[[], object]:
    """A function that copies `nbytes` from one tensor to another, both already touched."""
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    return lambda: target.copy_(source)


def _time(
    call: Callable[[], object], nbytes: int, samples: int, device: torch.device, ranks: RankGroup
) -> SizeTiming:
    """Time `call`, which all ranks make at once; they agree on the number of calls."""

    def seconds_of(calls: int) -> float:
        synchronize(device)
        ranks.barrier()
        start = perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        return perf_counter() - start

    def shorter_of_two(calls: int) -> float:
        """Seconds on the slowest rank; the shorter of two, so that one disturbed sample does not
        decide the number of calls."""
        return ranks.largest(min(seconds_of(calls), seconds_of(calls)))

    calls, seconds = 1, shorter_of_two(1)  # also warms up
    while seconds < SAMPLE_SECONDS and calls < MOST_CALLS:
        growth = min(1.2 * SAMPLE_SECONDS / max(seconds, 1e-6), 100.0)
        calls = min(math.ceil(growth * calls), MOST_CALLS)
        seconds = shorter_of_two(calls)
    count = min(samples, max(int(SIZE_SECONDS / seconds), FEWEST_SAMPLES))
    with between_barriers(device, ranks):
        taken = tuple(seconds_of(calls) / calls for _ in range(count))
    return SizeTiming(nbytes=nbytes, calls_per_sample=calls, seconds=taken)
