"""Which parameters had no gradient, and on how many ranks: told along with the gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.ddp.exchange import Exchange

EXACT = (torch.float32, torch.float64)
"""Dtypes whose sums of ones stay exact for any number of ranks."""


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
        self._flags = exchange.zeros(size, torch.float32, device) if rider is None else rider
        self._missing, self._gave_up = self._flags[:count], self._flags[count:]
        self._work: dist.Work | None = None
        self._averaged = False
        if device.type != "cpu":
            self._on_host = torch.zeros(1, pin_memory=True)
            self._copied = torch.Event(device.type)

    @staticmethod
    def length(count: int) -> int:
        """Elements of a report on `count` parameters."""
        return count + 1

    def flag(self, indices: Iterable[int]) -> None:
        """This rank has no gradient for these parameters."""
        for index in indices:
            self._missing[index] = 1

    def give_up(self) -> None:
        """This rank does not expect its gradients any more: an error on all ranks."""
        self._gave_up.fill_(1)

    def send(self, *, average: bool) -> None:
        """After the last flag, before the last bucket is waited for."""
        self._averaged = average
        if self._alone:
            self._work = self._exchange.start(self._flags, average=average)

    def wait(self) -> None:
        """Until the flags are those of all ranks; not needed where they ride with a bucket."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def some_rank_gave_up(self) -> bool:
        """On CUDA only as far as is known without waiting for the device: of a backward before."""
        if self._flags.device.type == "cpu":
            return bool(self._gave_up.item())
        known = self._copied.query()
        answer = known and bool(self._on_host.item())
        if known:
            self._on_host.copy_(self._gave_up, non_blocking=True)
            self._copied.record()
        return answer

    def on_some_rank(self) -> list[int]:
        """The parameters that are missing on at least one rank."""
        found: list[int] = self._missing.nonzero().flatten().tolist()
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
