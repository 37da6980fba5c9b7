"""One rank's part in measuring one collective: every size is verified, then timed.

A sample is timed from a barrier until the device is idle. Calls of less than a millisecond are
timed several at once, so that neither the ranks' uneven start nor the clock's resolution matters.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.measure.device import set_device
from dpbench.measure.window import between_barriers
from dpbench.parallel.devices import synchronize
from dpbench.parallel.shm import allocate_group_zeros
from dpbench.records.collectives import SizeTiming
from dpbench.rendezvous.process_group import RankGroup, rank_group
from dpbench.specs.collective import IN_PARTS, Collective, CollectiveSpec

DTYPE = torch.float32
SAMPLE_SECONDS = 1e-3
"""Least duration of a sample."""
SIZE_SECONDS = 0.6
"""Most time for the samples of one size, unless that leaves fewer than MIN_SAMPLES."""
MIN_SAMPLES = 5
PERIOD = 8191
"""Number of elements after which values repeat: a prime, so that a misplaced part hardly ever looks
right."""
TOLERANCE = 100
"""Largest relative error that passes, in units of the rounding of float32. A sum over a thousand
ranks stays below a third of it; a misplaced element or a missing rank is above it ten times."""
ROOT = 0


def measure_collective(spec: CollectiveSpec, rank: int) -> tuple[SizeTiming, ...] | str:
    """Measure all sizes of `spec` as `rank`.

    At the first size with a wrong result it ends, and returns what is wrong with this rank's; ""
    if only another rank's is wrong.
    """
    device = torch.device(spec.devices[rank])
    torch.set_num_threads(spec.threads_per_replica)
    set_device(device)
    timings = []
    with rank_group(spec.backend, spec.group_size, device) as ranks:
        for nbytes in spec.sizes_bytes:
            operation = CollectiveOperation(spec.collective, nbytes, device)
            error, wrong = operation.check()  # also the first call of the size
            if ranks.max(wrong is not None):
                return wrong or ""
            calls, seconds = _time(operation, spec.samples, device, ranks)
            timings.append(
                SizeTiming(
                    nbytes=nbytes, calls_per_sample=calls, seconds=seconds, largest_error=error
                )
            )
            del operation  # frees its memory before the next one allocates
    return tuple(timings)


def _time(
    call: Callable[[], object], samples: int, device: torch.device, ranks: RankGroup
) -> tuple[int, tuple[float, ...]]:
    """Time `call`, which all ranks make at once: the number of calls in a sample, on which they
    agree, and the seconds of one call in each sample."""

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
        return ranks.max(min(seconds_of(calls), seconds_of(calls)))

    calls, seconds = 1, shorter_of_two(1)  # also warms up
    while seconds < SAMPLE_SECONDS:
        calls *= 2
        seconds = shorter_of_two(calls)
    count = min(samples, max(int(SIZE_SECONDS / seconds), MIN_SAMPLES))
    with between_barriers([device], ranks):
        return calls, tuple(seconds_of(calls) / calls for _ in range(count))


class CollectiveOperation:
    """A collective of the default group, on tensors of this rank; calling it runs it.

    `all_reduce` is in place and, with shm on the CPU, in the group's shared memory, where our
    DistributedDataParallel holds its buckets. torch allocates all other tensors.
    """

    def __init__(self, collective: Collective, nbytes: int, device: torch.device) -> None:
        """Allocate the tensors; a collective itself where memory is shared.

        `nbytes` is the size as nccl-tests defines it, see dpbench.specs.collective.
        """
        self.collective = collective
        self.nbytes = nbytes
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        parts = self._size if collective in IN_PARTS else 1
        share = nbytes // (DTYPE.itemsize * parts)
        group = dist.group.WORLD
        assert group is not None  # a process group is there
        self.whole = (
            allocate_group_zeros(group, share, DTYPE, device)
            if collective == "all_reduce"
            else torch.zeros(share * parts, dtype=DTYPE, device=device)
        )
        self._share = torch.zeros(share if parts > 1 else 0, dtype=DTYPE, device=device)

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

    def check(self) -> tuple[float, str | None]:
        """Run the collective on thirds, which differ between ranks and elements and are inexact in
        binary.

        Returns:
            The largest error of this rank's result relative to exact arithmetic on the same values,
            due to the order of the sum and the precision of the data sent; 0 if values are only
            moved. And what is wrong if that is beyond the tolerance, else None.
        """
        share, everyone = len(self._share), range(self._size)
        # The tensor that is sent, and each part of the result with its first value and its senders.
        match self.collective:
            case "all_reduce":
                sent, results = self.whole, [(self.whole, 0, everyone)]
            case "broadcast":
                sent, results = self.whole, [(self.whole, 0, range(ROOT, ROOT + 1))]
            case "all_gather":
                chunks = enumerate(self.whole.chunk(self._size))
                sent = self._share
                results = [(part, 0, range(rank, rank + 1)) for rank, part in chunks]
            case "reduce_scatter":
                sent, results = self.whole, [(self._share, self._rank * share, everyone)]
        own = self._thirds(self._rank)
        for part in torch.split(sent, PERIOD):
            part.copy_(own[: len(part)])
        self()
        largest, wrong = 0.0, None
        for result, start, senders in results:
            exact = torch.stack([self._thirds(sender).double() for sender in senders]).sum(dim=0)
            for number, values in enumerate(torch.split(result, PERIOD)):
                expected = exact[start % PERIOD :][: len(values)]
                errors = (values.double() - expected).abs() / expected
                far = ~(errors <= TOLERANCE * torch.finfo(DTYPE).eps)  # a NaN is far too
                if wrong is None and far.any():
                    place = int(far.nonzero()[0])
                    wrong = (
                        f"{self.collective} of {self.nbytes:,} B gave {values[place].item():g} on "
                        f"rank {self._rank} at element {number * PERIOD + place}, expected "
                        f"{expected[place].item():g}"
                    )
                largest = max(largest, float(errors.max()))
        self.whole.zero_()  # so that repeated sums of the timed calls do not grow
        self._share.zero_()
        return largest, wrong

    def _thirds(self, rank: int) -> Tensor:
        """The values that a rank sends: two periods of them, to start anywhere in the first."""
        places = torch.arange(2 * PERIOD, device=self.whole.device) % PERIOD + 1
        return (places.double() * (rank + 1) / (3 * PERIOD)).to(DTYPE)
