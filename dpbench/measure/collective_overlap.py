"""A collective and a computation at once on one rank, to see how much they slow each other down."""

from __future__ import annotations

import math
from statistics import median
from time import perf_counter

import torch

from dpbench.measure.collective_operation import CollectiveOperation
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.window import affordable_samples, between_barriers, synchronize
from dpbench.records.collectives import OverlapTiming

OVERLAP_SIZE_SECONDS = 1.5
"""Most time for the samples of one size, unless that leaves fewer than FEWEST_SAMPLES."""
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
    count = affordable_samples(samples, 3 * seconds, OVERLAP_SIZE_SECONDS)
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
