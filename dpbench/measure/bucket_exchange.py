"""The cost of exchanging a gradient bucket in a step, where nothing is warm for it.

A collective called in a loop finds its tensors in the caches and its threads awake. In a step it
finds neither: on a CPU the same all-reduce then takes up to twice as long. So before each sample
the ranks compute and use other memory, and the bucket is filled from fresh gradients as
DistributedDataParallel fills it.
"""

from __future__ import annotations

from time import perf_counter

import torch

from dpbench.collectives import ExchangeTiming
from dpbench.measure.collective_operation import CollectiveOperation
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.window import between_barriers, synchronize

ROWS = 384
"""Size of the square matrices that are multiplied between samples: about 1 ms each on a core."""
PRODUCTS_BEFORE_BARRIER = 4
PRODUCTS_AFTER_BARRIER = 2
"""Matrix products after the barrier; then ranks arrive as unevenly as in a step."""
OTHER_BYTES = 16 * 1024 * 1024
"""Bytes of other memory used between samples: at least as much as the caches of a core hold."""
SIZE_SECONDS = 1.0
"""Most time for the samples of one size, unless that leaves fewer than FEWEST_SAMPLES."""
FEWEST_SAMPLES = 5


class _Step:
    """The part of a step that concerns one bucket."""

    def __init__(
        self, operation: CollectiveOperation, device: torch.device, ranks: RankGroup
    ) -> None:
        self._operation = operation
        self._device = device
        self._ranks = ranks
        self._factor, self._product = torch.ones(2, ROWS, ROWS, device=device)
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
    step = _Step(operation, device, ranks)
    step.run()  # warms up
    start = perf_counter()
    step.run()
    seconds = ranks.largest(perf_counter() - start)
    count = min(samples, max(int(SIZE_SECONDS / seconds), FEWEST_SAMPLES))
    with between_barriers(device, ranks):
        copies, collectives = zip(*(step.run() for _ in range(count)), strict=True)
    return ExchangeTiming(
        nbytes=operation.nbytes, copy_seconds=copies, collective_seconds=collectives
    )
