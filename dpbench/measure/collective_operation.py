"""One collective at one message size: its tensors, its call, and the proof of its result."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm import zeros
from dpbench.records.collectives import Collective

PERIOD = 8191
"""Number of elements after which values repeat: a prime, so that a misplaced part hardly ever looks
right, and small enough for exact float32 sums over a thousand ranks."""
ROOT = 0


class CollectiveOperation:
    """A collective of the default group, on tensors of this rank.

    `all_reduce` is in place and, with shm on the CPU, in the group's shared memory, where our
    DistributedDataParallel holds its buckets. torch allocates all other tensors.

    Attributes:
        whole: the flat tensor of the whole message.
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
        count = share * parts
        self.whole = (
            zeros(group, count, dtype, device)
            if collective == "all_reduce"
            else torch.zeros(count, dtype=dtype, device=device)
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

    def clear(self) -> None:
        """Set the tensors to zero, so that repeated sums do not grow."""
        self.whole.zero_()
        self._share.zero_()

    def wrong_result(self) -> str | None:
        """Run the collective on values that differ between ranks and elements.

        Returns:
            What is wrong with this rank's result; None if it is exact.
        """
        self._run_on(self._ramp + (self._rank + 1))
        for result, first_value, senders in self._parts():
            added = sum(sender + 1 for sender in senders)
            for first, values in _periods(result):
                expected = self._values(first_value + first, len(values)) * len(senders) + added
                if not torch.equal(values, expected):
                    return self._difference(values, expected, first)
        return None

    def largest_error(self) -> float:
        """Run the collective on values that have to be rounded.

        Returns:
            The largest error of this rank's result relative to exact arithmetic on the same values,
            due to the order of the sum and the precision of the data sent; 0 if values are only
            moved.
        """
        self._run_on(self._fractions(self._rank))
        largest = 0.0
        for result, first_value, senders in self._parts():
            exact = sum(self._fractions(sender).double() for sender in senders)
            assert isinstance(exact, Tensor)  # somebody sends
            for first, values in _periods(result):
                expected = exact[(first_value + first) % PERIOD :][: len(values)]
                errors = (values.double() - expected).abs() / expected
                largest = max(largest, float(errors.max()))
        self.clear()
        return largest

    def _run_on(self, values: Tensor) -> None:
        """Run the collective on two periods of values, which are repeated as often as needed."""
        self.clear()  # of an earlier result
        for _, part in _periods(self._share if self.collective == "all_gather" else self.whole):
            part.copy_(values[: len(part)])
        self()

    def _fractions(self, rank: int) -> Tensor:
        """Two periods of a rank's input: thirds up to 1 + rank, which are inexact in binary."""
        return ((self._ramp.double() + 1) * (rank + 1) / (3 * PERIOD)).to(self._ramp.dtype)

    def _parts(self) -> Iterator[tuple[Tensor, int, range]]:
        """The parts of the result: a tensor, the start of its ramp, and the ranks summed in it."""
        everyone = range(self._size)
        match self.collective:
            case "all_reduce":
                yield self.whole, 0, everyone
            case "broadcast":
                yield self.whole, 0, range(ROOT, ROOT + 1)
            case "all_gather":
                for rank, part in enumerate(self.whole.chunk(self._size)):
                    yield part, 0, range(rank, rank + 1)
            case "reduce_scatter":
                yield self._share, self._rank * len(self._share), everyone

    def _values(self, start: int, count: int) -> Tensor:
        """The values start, start + 1, …, modulo PERIOD; at most PERIOD of them."""
        return self._ramp[start % PERIOD :][:count]

    def _difference(self, values: Tensor, expected: Tensor, first: int) -> str:
        place = int((values != expected).nonzero()[0])
        return (
            f"{self.collective} of {self.nbytes:,} B gave {values[place].item():g} on rank "
            f"{self._rank} at element {first + place}, expected {expected[place].item():g}"
        )


def _periods(tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Views of a flat tensor, with the index of the first element of each."""
    yield from zip(range(0, len(tensor), PERIOD), torch.split(tensor, PERIOD), strict=True)
