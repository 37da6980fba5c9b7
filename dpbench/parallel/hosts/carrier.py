"""Carries data to other hosts, over gloo."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm.member import Member, Steps

_GLOO = dist.ProcessGroup.BackendType.GLOO


class Crossing:
    """Data on its way between hosts, as something that an operation waits for."""

    excuse = "which waits for data from other hosts"

    def __init__(self, work: dist.Work) -> None:
        """
        Args:
            work: of an operation of gloo.
        """
        self._work = work
        self._ended = threading.Event()
        work.get_future().add_done_callback(lambda _: self._ended.set())

    @property
    def has_arrived(self) -> bool:
        """Whether the operation has ended, well or not."""
        return self._ended.is_set()

    def wait(self, seconds: float) -> None:
        """Return when the operation has ended, or after `seconds`."""
        self._ended.wait(seconds)

    def require_success(self) -> None:
        """
        Raises:
            torch.distributed.DistBackendError: the operation failed.
        """
        try:
            self._work.wait()
        except RuntimeError as error:
            raise dist.DistBackendError(f"data from other hosts did not arrive: {error}") from error


class Carrier:
    """Operations of gloo that a rank starts, and waits for as it does for the ranks of its host.

    Attributes:
        gloo: torch's process group.
    """

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, member: Member
    ) -> None:
        """Connect to the other ranks; a collective.

        Args:
            store: used by this group of gloo alone.
            rank, size: in that group.
            timeout: to connect, and for each operation.
            member: this rank's place on its host.
        """
        gloo: Any = dist.ProcessGroup(store, rank, size)
        gloo._set_default_backend(_GLOO)
        self._backend = dist.ProcessGroupGloo(store, rank, size, timeout)
        gloo._register_backend(torch.device("cpu"), _GLOO, self._backend)
        self.gloo = gloo
        self._member = member

    def exchange(
        self, source: Tensor, sent: Sequence[int], target: Tensor, received: Sequence[int]
    ) -> Crossing:
        """Send each rank a part of a tensor, and get a part of another from each.

        Args:
            source: 1-D, contiguous; its parts lie one after the other, by rank.
            sent: number of elements in each part.
            target, received: the same of what comes; of the dtype of `source`.
        """
        width = source.itemsize
        return self.begin(
            self.gloo.alltoall_base(
                target.view(torch.uint8),
                source.view(torch.uint8),
                [count * width for count in received],
                [count * width for count in sent],
            )
        )

    def begin(self, work: dist.Work) -> Crossing:
        """What to wait for until the work has ended."""
        # From here on others may wait for this rank.
        self._member.told += 1
        return Crossing(work)

    def arrival(self, crossing: Crossing) -> Steps[None]:
        """Wait until the data has arrived.

        Raises:
            torch.distributed.DistBackendError: it did not.
        """
        while not crossing.has_arrived:
            yield crossing
        self._member.taken += 1
        crossing.require_success()

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the limit on each operation from now on."""
        self._backend._set_default_timeout(timeout)
