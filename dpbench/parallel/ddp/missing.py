"""Which parameters had no gradient, and on how many ranks: told along with the gradients."""

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
"""For which number of ranks a sum of ones, or their mean, tells "all" from "all but one"."""


class MissingReport:
    """One flag per parameter, summed over the ranks: zero where all have a gradient.

    One flag more says that a rank has given up waiting for its gradients. The report rides behind
    the gradients of the last bucket where that is possible, so that nobody pays a collective for
    it; elsewhere it has one of its own.
    """

    def __init__(
        self, count: int, exchange: Exchange, device: torch.device, rider: Tensor | None
    ) -> None:
        """
        Args:
            count: of parameters.
            exchange: of the ranks.
            device: of the flags.
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
        """One element per parameter; not kept, as the bucket counts who looks at its memory."""
        return self._flags[: self._count]

    @property
    def _gave_up(self) -> Tensor:
        return self._flags[self._count :]

    def ride_on(self, rider: Tensor) -> None:
        """The last bucket has other memory now, and the flags with it."""
        if not self._alone:
            self._flags = rider

    @staticmethod
    def length(count: int) -> int:
        """Elements of a report on `count` parameters."""
        return count + 1

    @staticmethod
    def can_ride(dtype: torch.dtype, ranks: int) -> bool:
        """Whether flags of so many ranks can be summed in gradients of this dtype."""
        return ranks <= _MOST_RANKS.get(dtype, 0)

    def flag(self, indices: Collection[int]) -> None:
        """This rank has no gradient for these parameters."""
        if not indices:
            return
        if self._places is None or self._placed != set(indices):
            # Kept, as they are often the same in each step; and a CUDA graph captures no copy of
            # host memory.
            self._placed = set(indices)
            self._places = torch.tensor(sorted(indices), device=self._flags.device)
        self._missing.index_fill_(0, self._places, 1)

    def give_up(self) -> None:
        """This rank does not expect its gradients any more: an error on all ranks."""
        self._gave_up.fill_(1)

    def send(self, *, average: bool) -> None:
        """After the last flag, before the last bucket is waited for."""
        self._averaged = average and not self._alone
        if self._alone:
            self._work = self._exchange.start(self._flags, average=False)

    def wait(self) -> None:
        """Until the flags are those of all ranks; not needed where they ride with a bucket."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def agreed_now(self, indices: Collection[int]) -> set[int]:
        """Flag these parameters, and return those that nobody has a gradient for; a collective.

        Only where the report travels alone.
        """
        self.flag(indices)
        self.send(average=False)
        self.wait()
        everywhere = self.on_every_rank()
        self.reset()
        return everywhere

    def where_given_up(self) -> list[int] | None:
        """The parameters that are missing on some rank, if one has given up; else None.

        On CUDA the answer would be a wait for the device: it is given by `late_where_given_up`.
        """
        if self._sent is None:
            return self._missing_of(self._flags)
        self._sent.send(self._flags)
        return None

    def late_where_given_up(self) -> list[int] | None:
        """The same of the last backward, before the next forward.

        On CUDA the host waits there until the gradients have been reduced, and has meanwhile given
        the device the optimizer's step to do. Without that wait it would be a step ahead when a
        rank gives up, and in a collective that this rank has left.
        """
        flags = None if self._sent is None else self._sent.take()
        return None if flags is None else self._missing_of(flags)

    def _missing_of(self, flags: Tensor) -> list[int] | None:
        if not flags[self._count :].any():
            return None
        found: list[int] = flags[: self._count].nonzero().flatten().tolist()
        return found

    def on_every_rank(self) -> set[int]:
        """The parameters that nobody has a gradient for."""
        ranks = self._exchange.size
        everyone = 1.0 if self._averaged else float(ranks)
        found = self._missing > everyone * (1 - 0.5 / ranks)
        return set(found.nonzero().flatten().tolist())

    def reset(self) -> None:
        """No parameter is missing, for the next backward."""
        self._flags.zero_()
