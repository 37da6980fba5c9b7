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

from dpbench.errors import DpbenchError
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


def measure_collective(spec: CollectiveSpec, rank: int) -> tuple[SizeTiming, ...]:
    """Measure all sizes of `spec` as `rank`.

    At the first size with a wrong result all ranks end. Raises DpbenchError in those whose own is.
    """
    device = torch.device(spec.devices[rank])
    torch.set_num_threads(spec.threads)
    set_device(device)
    timings = list[SizeTiming]()
    wrong: str | None = None
    with rank_group(spec.backend, spec.group_size, device) as ranks:
        for nbytes in spec.sizes_bytes:
            operation = CollectiveOperation(spec.collective, nbytes, device)
            error, wrong = operation.check()  # also the first call of the size
            if ranks.max(wrong is not None):
                break
            seconds = _time(operation, spec.samples, device, ranks)
            timings.append(SizeTiming(nbytes=nbytes, seconds=seconds, largest_error=error))
            del operation  # frees its memory before the next one allocates
    if wrong is not None:
        raise DpbenchError(wrong)
    return tuple(timings)


def _time(
    call: Callable[[], object], samples: int, device: torch.device, ranks: RankGroup
) -> tuple[float, ...]:
    """Time `call`, which all ranks make at once: the seconds of one call in each sample. The ranks
    agree on the number of calls in a sample."""

    def seconds_of(calls: int) -> float:
        synchronize(device)
        ranks.barrier()
        start = perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        return perf_counter() - start

    calls = 1
    # The shorter of two samples on the slowest rank: one that is disturbed does not decide.
    while (seconds := ranks.max(min(seconds_of(calls), seconds_of(calls)))) < SAMPLE_SECONDS:
        calls *= 2
    count = min(samples, max(int(SIZE_SECONDS / seconds), MIN_SAMPLES))
    with between_barriers([device], ranks):
        return tuple(seconds_of(calls) / calls for _ in range(count))


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
        sent = self._share if self.collective == "all_gather" else self.whole
        result = self._share if self.collective == "reduce_scatter" else self.whole
        adds = self.collective in ("all_reduce", "reduce_scatter")
        # The parts of all_gather are those of one message, so it has one sender like a broadcast.
        own = self._thirds(sent, ROOT if self.collective == "all_gather" else self._rank)
        for part in torch.split(sent, PERIOD):
            part.copy_(own[: len(part)])
        self()
        senders = range(self._size) if adds else [ROOT]
        exact = torch.stack([self._thirds(result, sender).double() for sender in senders]).sum(0)
        largest, wrong = 0.0, None
        for number, values in enumerate(torch.split(result, PERIOD)):
            expected = exact[: len(values)]
            errors = (values.double() - expected).abs() / expected
            far = ~(errors <= TOLERANCE * torch.finfo(DTYPE).eps)  # a NaN is far too
            if wrong is None and far.any():
                place = int(far.nonzero()[0])
                wrong = (
                    f"{self.collective} of {self.nbytes:,} B gave {values[place].item():g} at "
                    f"element {number * PERIOD + place}, expected {expected[place].item():g}"
                )
            largest = max(largest, float(errors.max()))
        self.whole.zero_()  # so that repeated sums of the timed calls do not grow
        self._share.zero_()
        return largest, wrong

    def _thirds(self, tensor: Tensor, sender: int) -> Tensor:
        """A period of the values that a rank sends, from the tensor's place in the message on."""
        first = self._rank * len(tensor) if tensor is self._share else 0
        places = (torch.arange(PERIOD, device=tensor.device) + first) % PERIOD + 1
        return (places.double() * (sender + 1) / (3 * PERIOD)).to(DTYPE)
