"""A flat tensor with one share per rank: the two halves of an all-reduce, sum and gather.

The ranks exchange shares by a backend's collectives, by messages, or by reading memory that all
ranks of the group see: there nothing is sent, and ranks only wait. A rank reduces its share from
where the others have their gradients, and copies the parameters of the others from where they have
stepped them. It writes to its own memory only:

    backward   writes the gradients of all shares
    meeting    … all ranks have written theirs
               sums its share over the ranks, and steps its share of the parameters
    meeting    … all ranks have stepped, and no rank reads gradients any more
               copies the shares of the others
    meeting    … no rank reads parameters any more; the user may change them

Without a step, the last meeting is at the next forward, before its backward writes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.ddp.comm_hooks import Exchange
from dpbench.parallel.groups import gather_values
from dpbench.parallel.shm.all_reduce import PIECE_BYTES
from dpbench.parallel.shm.peers import Identity

Wait = Callable[[], None]
"""Call it once, to wait for what was begun (on CUDA only the current stream waits)."""
# Their names before torch 2.13 are deprecated.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_TAG, _GATHER_TAG = 7301, 7302
"""Tags of messages between two ranks, apart from those that a user may send in the same group."""
CROSSING_MESSAGES, LEAST_MESSAGE_BYTES = 8, 2**18
"""Most messages for a share that crosses another one between two hosts, and the least bytes of one.
While gloo writes a message to a connection it reads nothing from it, so that two that cross on a
slow link take twice as long; of 5 MB at 1 Gbit/s, eight take 0.6 of that. Within a host each costs
some 50 µs and gains nothing."""


class Shares:
    """The shares of a rank that is alone, and has nothing to exchange.

    Attributes:
        flat: 1-D, contiguous; it consists of one equal share per rank.
        own: this rank's share.
        rank, size: in the group.
    """

    def __init__(self, flat: Tensor, rank: int, size: int) -> None:
        self.flat = flat
        self.rank, self.size = rank, size
        self.own = self.of_ranks(flat)[rank]

    def reduce(self, scale: float, *, average: bool) -> Wait:
        """Begin to replace this rank's share by its sum over the ranks times `scale`.

        What the other shares hold afterwards is undefined.

        Args:
            scale: for the sum.
            average: whether the backend divides by the number of ranks, as nccl can.
        """
        return _nothing

    def gather(self) -> Wait:
        """Begin to replace the other shares by those of the ranks that own them."""
        return _nothing

    def of_ranks(self, flat: Tensor) -> list[Tensor]:
        """The shares in a tensor like this one, by rank."""
        return list(flat.view(self.size, flat.numel() // self.size))

    @property
    def others(self) -> list[int]:
        """The other ranks, the next one first, so that not all turn to the same rank at once."""
        return [(self.rank + distance) % self.size for distance in range(1, self.size)]


class CollectiveShares(Shares):
    """Shares that a backend's own collectives exchange."""

    def __init__(self, flat: Tensor, group: dist.ProcessGroup) -> None:
        super().__init__(flat, dist.get_rank(group), dist.get_world_size(group))
        self._group = group
        self._wire = _real(flat)
        self._own_wire = self.of_ranks(self._wire)[self.rank]

    def reduce(self, scale: float, *, average: bool) -> Wait:
        operator = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
        work = _reduce_scatter(
            self._own_wire, self._wire, op=operator, group=self._group, async_op=True
        )
        return partial(_scale, work, self.own, scale)

    def gather(self) -> Wait:
        work = _all_gather(self._wire, self._own_wire, group=self._group, async_op=True)
        wait: Wait = work.wait
        return wait


class MessageShares(Shares):
    """Shares that ranks send each other, on gloo: its own reduce-scatter is an all-reduce, which
    moves twice as much, and its all-gather copies all shares once more."""

    def __init__(self, flat: Tensor, group: dist.ProcessGroup, is_near: Sequence[bool]) -> None:
        """
        Args:
            flat: as in the other kinds of shares.
            group: the ranks.
            is_near: by rank, whether it is on this rank's host.
        """
        super().__init__(flat, dist.get_rank(group), dist.get_world_size(group))
        self._group = group
        self._is_near = is_near
        self._wires = self.of_ranks(_real(flat))
        self._summands: Summands | None = None
        self._received: list[Tensor] = []

    def reduce(self, scale: float, *, average: bool) -> Wait:
        if self._summands is None:
            received = [torch.empty_like(self.own) for _ in self.others]
            self._received = [_real(one) for one in received]
            self._summands = Summands(self.own, received)
        works: list[Any] = []
        for place, peer in zip(self._received, self.others, strict=True):
            works += self._exchange(peer, self._wires[peer], place, _REDUCE_TAG)
        return partial(_add_up, works, self._summands, scale)

    def gather(self) -> Wait:
        works: list[Any] = []
        for peer in self.others:
            works += self._exchange(peer, self._wires[self.rank], self._wires[peer], _GATHER_TAG)
        return partial(_wait, works)

    def _exchange(self, peer: int, sent: Tensor, received: Tensor, tag: int) -> Iterator[Any]:
        """Begin to send one share to a rank, and to receive one from it."""
        name = dist.get_global_rank(self._group, peer)
        size = sent.numel()
        if not self._is_near[peer]:
            least = LEAST_MESSAGE_BYTES // sent.itemsize
            size = max(least, -(-size // CROSSING_MESSAGES), 1)
        for message, place in zip(
            torch.split(sent, size), torch.split(received, size), strict=True
        ):
            yield dist.isend(message, name, self._group, tag)
            yield dist.irecv(place, name, self._group, tag)


class Summands:
    """Tensors of one size that are added up piece by piece, each while it is in the cache."""

    def __init__(self, own: Tensor, others: Sequence[Tensor]) -> None:
        """
        Args:
            own: the first summand, and the place of the sum.
            others: the other summands.
        """
        numel = max(1, PIECE_BYTES // own.itemsize)
        split = [torch.split(one, numel) for one in (own, *others)]
        self._pieces = list(zip(*split, strict=True))

    def add_up(self, scale: float) -> None:
        """Replace the first tensor by the sum of all, times `scale`."""
        for own, *others in self._pieces:
            for other in others:
                own.add_(other)
            if scale != 1.0:
                own.mul_(scale)


def _real(flat: Tensor) -> Tensor:
    """A view of the memory as real numbers, since not all backends know complex ones."""
    return torch.view_as_real(flat).flatten() if flat.is_complex() else flat


def _nothing() -> None:
    """There is nothing to wait for."""


def _wait(works: list[Any]) -> None:
    """Wait for each message once: gloo would wait for one that has come until another comes. It
    takes a message for completed only when somebody has waited for it; other backends also when it
    has failed, so their works are not for this function."""
    for work in reversed(works):
        if not work.is_completed():
            work.wait()


def _scale(work: Any, own: Tensor, scale: float) -> None:
    work.wait()
    if scale != 1.0:
        own.mul_(scale)


def _add_up(works: list[Any], summands: Summands, scale: float) -> None:
    _wait(works)
    summands.add_up(scale)


class ShareExchange:
    """Makes flat tensors that consist of one equal share per rank.

    Attributes:
        group: the ranks.
        rank, size: in the group.
    """

    def __init__(self, exchange: Exchange, device: torch.device) -> None:
        """
        Args:
            exchange: allocates the memory.
            device: of all tensors.
        """
        self.group = exchange.group
        self.rank, self.size = dist.get_rank(exchange.group), exchange.size
        self._exchange = exchange
        backends = dist.get_backend_config(exchange.group).split(",")
        self._is_near: Sequence[bool] = ()
        if device.type == "cpu" and "cpu:gloo" in backends and self.size > 1:
            identity = Identity.of_this_process()
            here = f"{identity.boot} {identity.namespace}"
            self._is_near = [key == here for key in gather_values(here, exchange.group)]

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> Shares:
        """A tensor of `count` zeros, a multiple of the number of ranks; a collective where memory
        is shared."""
        return self.over(self._exchange.zeros(count, dtype, device))

    def over(self, flat: Tensor) -> Shares:
        """The shares of any flat tensor whose size is a multiple of the number of ranks."""
        if self.size == 1 or not flat.numel():
            return Shares(flat, self.rank, self.size)
        if self._is_near:
            return MessageShares(flat, self.group, self._is_near)
        return CollectiveShares(flat, self.group)

    def settle(self) -> None:
        """Return when no other rank reads this rank's memory any more; all ranks call it."""
