"""Which parameters had no gradient, and on how many ranks: sent along with the gradients."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.cuda import HostReport
from dpbench.parallel.ddp.exchange import Exchange

_MOST_RANKS = {
    torch.float64: 2**52,
    torch.float32: 2**23,
    torch.float16: 1024,
    torch.bfloat16: 128,
}
"""The largest number of ranks for which a dtype's sum of ones, or their mean, distinguishes "all"
from "all but one"."""


class MissingReport:
    """One flag per parameter, summed over the ranks: zero where all have a gradient.

    One more flag says that a rank has given up waiting for its gradients. Where possible the report
    is appended to the last bucket, so that it costs no collective; otherwise it has one of its own.
    """

    def __init__(
        self, count: int, exchange: Exchange, device: torch.device, rider: Tensor | None
    ) -> None:
        """
        Args:
            count: number of parameters.
            exchange: sums the flags over the ranks.
            device: where the flags are.
            rider: the end of the last bucket; None if the report travels alone.
        """
        self._exchange = exchange
        self._alone = rider is None
        size = self.length(count)
        self._count = count
        self._flags = exchange.zeros(size, torch.float32, device) if rider is None else rider
        self._work: dist.Work | None = None
        self._averaged = False
        self._placed: set[int] = set()
        self._places: Tensor | None = None
        self._sent = HostReport(self._flags) if device.type == "cuda" else None

    @property
    def _missing(self) -> Tensor:
        """One flag per parameter; not kept, as the bucket counts the references to its memory."""
        return self._flags[: self._count]

    @property
    def _gave_up(self) -> Tensor:
        return self._flags[self._count :]

    def ride_on(self, rider: Tensor) -> None:
        """Move the flags to the last bucket's new memory."""
        if not self._alone:
            self._flags = rider

    @staticmethod
    def length(count: int) -> int:
        """Number of elements in a report on `count` parameters."""
        return count + 1

    @staticmethod
    def can_ride(dtype: torch.dtype, ranks: int) -> bool:
        """Whether flags of so many ranks can be summed exactly in a bucket of this dtype."""
        return ranks <= _MOST_RANKS.get(dtype, 0)

    def flag(self, indices: Collection[int]) -> None:
        """Flag these parameters as without a gradient on this rank."""
        if not indices:
            return
        if self._places is None or self._placed != set(indices):
            # Kept, as they are often the same in each step; and CUDA graphs capture no copy from
            # host memory.
            self._placed = set(indices)
            self._places = torch.tensor(sorted(indices), device=self._flags.device)
        self._missing.index_fill_(0, self._places, 1)

    def give_up(self) -> None:
        """Tell all ranks that this one no longer expects its gradients; an error on all of them."""
        self._gave_up.fill_(1)

    def send(self, *, average: bool) -> None:
        """Send the report, after the last flag and before the last bucket is waited for."""
        self._averaged = average and not self._alone
        if self._alone:
            self._work = self._exchange.start(self._flags, average=False)

    def wait(self) -> None:
        """Wait until the flags are those of all ranks; not needed if they travel with a bucket."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def agreed_now(self, indices: Collection[int]) -> set[int]:
        """Flag these parameters, and return those without a gradient on any rank; a collective.

        Call it only where the report travels alone.
        """
        self.flag(indices)
        self.send(average=False)
        self.wait()
        everywhere = self.on_every_rank()
        self.reset()
        return everywhere

    def where_given_up(self) -> list[int] | None:
        """The parameters that are missing on some rank, if one has given up; else None.

        On CUDA the answer would need a wait for the device, so `late_where_given_up` gives it.
        """
        if self._sent is None:
            return self._missing_of(self._flags)
        self._sent.send(self._flags)
        return None

    def late_where_given_up(self) -> list[int] | None:
        """`where_given_up` for the last backward, asked before the next forward.

        On CUDA the host waits here until the gradients have been reduced, after it has queued the
        optimizer's step. Without that wait it would be one step ahead when a rank gives up, in a
        collective that the other rank has left.
        """
        flags = None if self._sent is None else self._sent.take()
        return None if flags is None else self._missing_of(flags)

    def _missing_of(self, flags: Tensor) -> list[int] | None:
        if not flags[self._count :].any():
            return None
        found: list[int] = flags[: self._count].nonzero().flatten().tolist()
        return found

    def on_every_rank(self) -> set[int]:
        """The parameters without a gradient on every rank."""
        ranks = self._exchange.size
        everyone = 1.0 if self._averaged else float(ranks)
        found = self._missing > everyone * (1 - 0.5 / ranks)
        return set(found.nonzero().flatten().tolist())

    def reset(self) -> None:
        """Clear all flags for the next backward."""
        self._flags.zero_()
