"""Carries data to other hosts, over gloo."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from dpbench.parallel.shm.member import Member, Steps

_GLOO = dist.ProcessGroup.BackendType.GLOO
_OPTIONS = dist.AllToAllOptions()


class Crossing:
    """Data on its way between hosts, as something that an operation waits for."""

    excuse = "which waits for data from other hosts"

    def __init__(self, *works: dist.Work) -> None:
        """
        Args:
            works: of operations of gloo.
        """
        self._works = works
        self._ends = [_end(work) for work in works]

    @property
    def has_arrived(self) -> bool:
        """Whether the operations have ended, well or not."""
        return all(end.is_set() for end in self._ends)

    def wait(self, seconds: float) -> None:
        """Return when the first that runs has ended, or after `seconds`."""
        for end in self._ends:
            if not end.is_set():
                end.wait(seconds)
                return

    def require_success(self) -> None:
        """
        Raises:
            torch.distributed.DistBackendError: an operation failed.
        """
        try:
            for work in self._works:
                work.wait()
        except RuntimeError as error:
            raise dist.DistBackendError(f"data from other hosts did not arrive: {error}") from error


class Carrier:
    """Operations of gloo that a rank starts, and waits for as it does for the ranks of its host.

    Attributes:
        gloo: torch's process group.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        member: Member,
        *,
        one_way: bool = False,
    ) -> None:
        """Connect to the other ranks; a collective.

        Args:
            store: used by this group of gloo alone.
            rank, size: in that group.
            timeout: to connect, and for each operation.
            member: this rank's place on its host.
            one_way: whether `exchange` has a connection for each direction between two ranks. Over
                a single one gloo asks for data behind the data that it is sending, so that one rank
                sends after the other: 36 ms for 2 MB each way at 1 Gbit/s, and 19 over two.
        """
        self._rank, self._member = rank, member
        self._backends = [
            dist.ProcessGroupGloo(PrefixStore(f"way {way}", store), rank, size, timeout)
            for way in range(2 if one_way else 1)
        ]
        gloo: Any = dist.ProcessGroup(store, rank, size)
        gloo._set_default_backend(_GLOO)
        gloo._register_backend(torch.device("cpu"), _GLOO, self._backends[0])
        self.gloo = gloo

    def exchange(
        self, source: Tensor, sent: Sequence[int], target: Tensor, received: Sequence[int]
    ) -> Crossing:
        """Send each rank a part of a tensor, and get a part of another from each.

        Args:
            source: 1-D, contiguous; its parts lie one after the other, by rank.
            sent: number of elements in each part.
            target, received: the same of what comes; of the dtype of `source`.
        """
        sent, received = list(sent), list(received)
        if len(self._backends) == 1:
            return self.begin(_all_to_all(self._backends[0], source, sent, target, received))
        # One way is that to higher ranks, and a rank's own; the rest takes the other.
        up, down = self._backends
        me, after = self._rank, self._rank + 1
        below, above = [0] * me, [0] * len(sent[after:])
        to_lower, to_higher = source.tensor_split([sum(sent[:me])])
        from_lower, from_higher = target.tensor_split([sum(received[:after])])
        return self.begin(
            _all_to_all(
                up, to_higher, [*below, *sent[me:]], from_lower, [*received[:after], *above]
            ),
            _all_to_all(
                down, to_lower, [*sent[:me], 0, *above], from_higher, [*below, 0, *received[after:]]
            ),
        )

    def begin(self, *works: dist.Work) -> Crossing:
        """Begin a crossing, which is over when the works have ended."""
        # From here on others may wait for this rank.
        self._member.told += 1
        return Crossing(*works)

    def arrival(self, crossing: Crossing) -> Steps[None]:
        """Wait until the data has arrived.

        Raises:
            torch.distributed.DistBackendError: it did not.
        """
        while not crossing.has_arrived:
            yield crossing
        self._member.taken += 1
        crossing.require_success()


def _end(work: dist.Work) -> threading.Event:
    """An event that is set when the work has ended."""
    end = threading.Event()
    work.get_future().add_done_callback(lambda _: end.set())
    return end


def _all_to_all(
    gloo: Any, source: Tensor, sent: list[int], target: Tensor, received: list[int]
) -> dist.Work:
    width = source.itemsize
    work: dist.Work = gloo.alltoall_base(
        target.view(torch.uint8),
        source.view(torch.uint8),
        [count * width for count in received],
        [count * width for count in sent],
        _OPTIONS,
    )
    return work
