"""One rank's part in measuring one collective: every size is verified, then timed beside a copy.

A sample is timed from a barrier until the device is idle. Calls of less than a millisecond are
timed several at once, so that neither the ranks' uneven start nor the clock's resolution matters.

Sizes of gradient buckets are also timed as they are exchanged in a step, and at once with a
computation, to see how much the two slow each other down.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch

from dpbench.measure.collective_operation import CollectiveOperation
from dpbench.measure.rank_group import RankGroup, rank_group
from dpbench.measure.window import between_barriers, synchronize
from dpbench.records.collectives import (
    CollectiveSpec,
    ExchangeTiming,
    OverlapTiming,
    RankCollectives,
    SizeTiming,
)

SAMPLE_SECONDS = 1e-3
"""Least duration of a sample."""
SIZE_SECONDS, EXCHANGE_SIZE_SECONDS, OVERLAP_SIZE_SECONDS = 0.6, 1.0, 1.5
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
    timings, copies, overlaps, exchanges = [], [], [], []
    sizes = {*spec.sizes_bytes, *spec.overlap_sizes_bytes, *spec.exchange_sizes_bytes}
    with rank_group(spec.backend, spec.group_size) as ranks:
        for nbytes in sorted(sizes):
            operation = CollectiveOperation(spec.collective, nbytes, dtype, device)
            wrong = operation.wrong_result()  # also the first call of the size
            if ranks.largest(wrong is not None):
                return WrongResult(wrong)
            error = operation.largest_error()
            if nbytes in spec.sizes_bytes:
                timing = _time(operation, nbytes, spec.samples, device, ranks)
                timings.append(replace(timing, largest_error=error))
                copies.append(_time(_copy(nbytes, device), nbytes, spec.samples, device, ranks))
            if nbytes in spec.overlap_sizes_bytes:
                overlaps.append(time_overlap(operation, spec.samples, device, ranks))
            if nbytes in spec.exchange_sizes_bytes:
                exchanges.append(time_exchange(operation, spec.samples, device, ranks))
            del operation  # frees its memory before the next one allocates
    return RankCollectives(
        rank=rank,
        pid=os.getpid(),
        device=str(device),
        host=socket.gethostname(),
        timings=tuple(timings),
        copies=tuple(copies),
        overlaps=tuple(overlaps),
        exchanges=tuple(exchanges),
    )


def _affordable(samples: int, seconds: float, most_seconds: float) -> int:
    """The number of samples, of `seconds` each, that fit the time; FEWEST_SAMPLES at least."""
    return min(samples, max(int(most_seconds / seconds), FEWEST_SAMPLES))


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
    count = _affordable(samples, seconds, SIZE_SECONDS)
    with between_barriers(device, ranks):
        taken = tuple(seconds_of(calls) / calls for _ in range(count))
    return SizeTiming(nbytes=nbytes, calls_per_sample=calls, seconds=taken)


EXCHANGE_ROWS = 384
"""Size of the square matrices that are multiplied between samples: about 1 ms each on a core."""
PRODUCTS_BEFORE_BARRIER = 4
PRODUCTS_AFTER_BARRIER = 2
"""Matrix products after the barrier; then ranks arrive as unevenly as in a step."""
OTHER_BYTES = 16 * 1024 * 1024
"""Bytes of other memory used between samples: at least as much as the caches of a core hold."""


class BucketStep:
    """The part of a step that concerns one bucket, where nothing is warm for it.

    A collective called in a loop finds its tensors in the caches and its threads awake. In a step
    it finds neither: on a CPU the same all-reduce then takes up to twice as long. So before each
    sample the ranks compute and use other memory, and the bucket is filled from fresh gradients as
    DistributedDataParallel fills it.
    """

    def __init__(
        self, operation: CollectiveOperation, device: torch.device, ranks: RankGroup
    ) -> None:
        self._operation = operation
        self._device = device
        self._ranks = ranks
        self._factor, self._product = torch.ones(2, EXCHANGE_ROWS, EXCHANGE_ROWS, device=device)
        self._other = torch.zeros(OTHER_BYTES, dtype=torch.uint8, device=device)
        self._bucket = operation.whole
        self._gradients = torch.zeros_like(self._bucket)

    def run(self) -> tuple[float, float]:
        """Seconds of the copy into the bucket, and from its end until the collective has ended."""
        self._compute(PRODUCTS_BEFORE_BARRIER)
        self._other.add_(1)
        self._gradients.mul_(1.0)
        synchronize(self._device)
        self._ranks.barrier()
        self._compute(PRODUCTS_AFTER_BARRIER)
        synchronize(self._device)
        start = perf_counter()
        torch.mul(self._gradients, 1 / self._ranks.size, out=self._bucket)
        synchronize(self._device)
        copied = perf_counter()
        self._operation.start().wait()
        synchronize(self._device)
        return copied - start, perf_counter() - copied

    def _compute(self, products: int) -> None:
        for _ in range(products):
            torch.mm(self._factor, self._factor, out=self._product)


def time_exchange(
    operation: CollectiveOperation, samples: int, device: torch.device, ranks: RankGroup
) -> ExchangeTiming:
    """Time one bucket after another, on all ranks at once; the ranks agree on the number of
    samples."""
    step = BucketStep(operation, device, ranks)
    step.run()  # warms up
    start = perf_counter()
    step.run()
    seconds = ranks.largest(perf_counter() - start)
    count = _affordable(samples, seconds, EXCHANGE_SIZE_SECONDS)
    with between_barriers(device, ranks):
        copies, collectives = zip(*(step.run() for _ in range(count)), strict=True)
    return ExchangeTiming(
        nbytes=operation.nbytes, copy_seconds=copies, collective_seconds=collectives
    )


OVERLAP_ROWS = {"cpu": 128, "cuda": 1024}
"""Size of the square matrices: a product takes some tens of microseconds."""
OUTLASTS = 1.3
"""Least ratio of computation to collective when the computation is sized."""
SIZING_RUNS = 3
"""Runs of both at once whose median decides whether the computation must be longer."""
LONGEST_COMPUTATION_SECONDS = 30.0


class Race:
    """Runs a computation and a collective on one rank, alone or both at once.

    The computation is a row of matrix products that outlasts the collective. On the CPU the rank
    checks between two products whether the collective has ended, and does not wait for its future:
    that would make shm poll sooner, which it does not for our DistributedDataParallel.
    """

    def __init__(
        self, operation: CollectiveOperation, device: torch.device, ranks: RankGroup
    ) -> None:
        self.products = 1
        """Number of matrix products in the computation."""
        self._operation = operation
        self._device = device
        self._ranks = ranks
        rows = OVERLAP_ROWS[device.type]
        self._factor, self._product = torch.ones(2, rows, rows, device=device)

    def run(self, *, compute: bool = True, collective: bool = True) -> tuple[float, float]:
        """Seconds from a common start until the end of the computation and of the collective; the
        value for a part that was left out is meaningless."""
        synchronize(self._device)
        self._ranks.barrier()
        products = self.products if compute else 0
        if self._device.type == "cuda":
            return self._on_cuda(products, collective=collective)
        return self._on_cpu(products, collective=collective)

    def _on_cpu(self, products: int, *, collective: bool) -> tuple[float, float]:
        ended = None
        start = perf_counter()
        work = self._operation.start() if collective else None
        for _ in range(products):
            torch.mm(self._factor, self._factor, out=self._product)
            if work is not None and ended is None and work.is_completed():
                ended = perf_counter()
        computed = perf_counter()
        if work is not None:
            work.wait()
        ended = ended or perf_counter()
        return computed - start, ended - start

    def _on_cuda(self, products: int, *, collective: bool) -> tuple[float, float]:
        begun, computed, ended = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(3)
        )
        begun.record()
        work = self._operation.start() if collective else None
        for _ in range(products):
            torch.mm(self._factor, self._factor, out=self._product)
        computed.record()
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            if work is not None:
                work.wait()
            ended.record()
        torch.cuda.synchronize(self._device)
        return begun.elapsed_time(computed) / 1e3, begun.elapsed_time(ended) / 1e3


def time_overlap(
    operation: CollectiveOperation, samples: int, device: torch.device, ranks: RankGroup
) -> OverlapTiming:
    """Time collective and computation alone and together, in turns; on all ranks at once."""
    race = Race(operation, device, ranks)
    seconds = _size_computation(race, ranks)
    count = _affordable(samples, 3 * seconds, OVERLAP_SIZE_SECONDS)
    alone, together = [], []
    with between_barriers(device, ranks):
        for _ in range(count):
            compute, _ = race.run(collective=False)
            _, collective = race.run(compute=False)
            alone.append((compute, collective))
            together.append(race.run())
    computes, collectives = zip(*alone, strict=True)
    computes_with, collectives_with = zip(*together, strict=True)
    return OverlapTiming(
        nbytes=operation.nbytes,
        compute_seconds=computes,
        compute_with_collective_seconds=computes_with,
        collective_seconds=collectives,
        collective_with_compute_seconds=collectives_with,
    )


def _size_computation(race: Race, ranks: RankGroup) -> float:
    """Make the computation long enough on every rank; returns the seconds that it then takes.

    Raises:
        RuntimeError: the collective does not end, no matter how long the rank computes.
    """
    race.run()  # warms up
    while True:
        races = [race.run() for _ in range(SIZING_RUNS)]
        seconds = ranks.largest(median(compute for compute, _ in races))
        longer = ranks.largest(
            OUTLASTS * median(collective / compute for compute, collective in races)
        )
        if longer <= 1:
            return seconds
        if seconds > LONGEST_COMPUTATION_SECONDS:
            raise RuntimeError(f"the collective had not ended after {seconds:.0f} s of computing")
        race.products = math.ceil(longer * race.products)
