"""One rank's part in measuring one collective: every size is verified, then timed beside a copy.

A sample is timed from a barrier until the device is idle. Calls of less than a millisecond are
timed several at once, so that neither the ranks' uneven start nor the clock's resolution matters.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.measure.rank_group import RankGroup, rank_group
from dpbench.measure.window import between_barriers, synchronize
from dpbench.parallel.shm import zeros
from dpbench.records.collectives import Collective, CollectiveSpec, RankCollectives, SizeTiming

SAMPLE_SECONDS = 1e-3
"""Least duration of a sample."""
SIZE_SECONDS = 0.6
"""Most time for the samples of one size, unless that leaves fewer than FEWEST_SAMPLES."""
FEWEST_SAMPLES = 5
MOST_CALLS = 10_000
PERIOD = 8191
"""Number of elements after which values repeat: a prime, so that a misplaced part hardly ever looks
right, and small enough for exact float32 sums over a thousand ranks."""
ROOT = 0


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
            del operation  # frees its memory before the next one allocates
            source = torch.ones(nbytes, dtype=torch.uint8, device=device)
            copy = torch.ones_like(source)
            copies.append(
                _time(lambda: copy.copy_(source), nbytes, spec.samples, device, ranks)  # noqa: B023
            )
    return RankCollectives(
        rank=rank,
        pid=os.getpid(),
        device=str(device),
        host=socket.gethostname(),
        timings=tuple(timings),
        copies=tuple(copies),
    )


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


class CollectiveOperation:
    """A collective of the default group, on tensors of this rank; calling it runs it.

    `all_reduce` is in place and, with shm on the CPU, in the group's shared memory, where our
    DistributedDataParallel holds its buckets. torch allocates all other tensors.
    """

    def __init__(
        self, collective: Collective, nbytes: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate the tensors; a collective itself where memory is shared.

        Args:
            nbytes: the size as defined by nccl-tests, see dpbench.records.collectives.

        Raises:
            ValueError: `nbytes` is not a whole number of elements for every rank.
        """
        self.collective = collective
        self.nbytes = nbytes
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        parts = self._size if collective in ("all_gather", "reduce_scatter") else 1
        share, rest = divmod(nbytes, dtype.itemsize * parts)
        if rest:
            raise ValueError(f"{collective} of {nbytes} bytes: not whole elements for every rank")
        group = dist.group.WORLD
        assert group is not None  # a process group is there
        self.whole = (
            zeros(group, share, dtype, device)
            if collective == "all_reduce"
            else torch.zeros(share * parts, dtype=dtype, device=device)
        )
        self._share = torch.zeros(share if parts > 1 else 0, dtype=dtype, device=device)
        self._ramp = (torch.arange(2 * PERIOD, device=device) % PERIOD).to(dtype)

    def __call__(self) -> None:
        """Run the collective; on CUDA it is only queued when this returns."""
        match self.collective:
            case "all_reduce":
                dist.all_reduce(self.whole)
            case "broadcast":
                dist.broadcast(self.whole, ROOT)
            case "all_gather":
                dist.all_gather_into_tensor(self.whole, self._share)
            case "reduce_scatter":
                dist.reduce_scatter_tensor(self._share, self.whole)

    def wrong_result(self) -> str | None:
        """Run the collective on values that differ between ranks and elements.

        Returns:
            What is wrong with this rank's result; None if it is exact.
        """
        for first, values, exact in self._results(lambda rank: self._ramp + (rank + 1)):
            if not torch.equal(values, exact):
                place = int((values != exact).nonzero()[0])
                return (
                    f"{self.collective} of {self.nbytes:,} B gave {values[place].item():g} on rank "
                    f"{self._rank} at element {first + place}, expected {exact[place].item():g}"
                )
        return None

    def largest_error(self) -> float:
        """Run the collective on values that have to be rounded: thirds, inexact in binary.

        Returns:
            The largest error of this rank's result relative to exact arithmetic on the same values,
            due to the order of the sum and the precision of the data sent; 0 if values are only
            moved.
        """

        def thirds(rank: int) -> Tensor:
            return ((self._ramp.double() + 1) * (rank + 1) / (3 * PERIOD)).to(self._ramp.dtype)

        results = self._results(thirds)
        largest = max(float(((got - exact).abs() / exact).max()) for _, got, exact in results)
        self._clear()  # so that repeated sums of the timed calls do not grow
        return largest

    def _clear(self) -> None:
        self.whole.zero_()
        self._share.zero_()

    def _results(self, values_of: Callable[[int], Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Run the collective where each rank sends its two periods of values, repeated.

        Yields, period by period, the first element of this rank's result, its values, and the exact
        ones, both in float64.
        """
        self._clear()
        sent = self._share if self.collective == "all_gather" else self.whole
        own = values_of(self._rank)
        for part in torch.split(sent, PERIOD):
            part.copy_(own[: len(part)])
        self()
        everyone = range(self._size)
        # Each part of the result, where its values start, and its senders.
        match self.collective:
            case "all_reduce":
                parts = [(self.whole, 0, everyone)]
            case "broadcast":
                parts = [(self.whole, 0, range(ROOT, ROOT + 1))]
            case "all_gather":
                chunks = enumerate(self.whole.chunk(self._size))
                parts = [(part, 0, range(rank, rank + 1)) for rank, part in chunks]
            case "reduce_scatter":
                parts = [(self._share, self._rank * len(self._share), everyone)]
        for result, start, senders in parts:
            exact = torch.zeros(2 * PERIOD, dtype=torch.float64, device=result.device)
            for sender in senders:
                exact += values_of(sender)
            for first, values in zip(
                range(0, len(result), PERIOD), torch.split(result, PERIOD), strict=True
            ):
                expected = exact[(start + first) % PERIOD :][: len(values)]
                yield first, values.double(), expected
