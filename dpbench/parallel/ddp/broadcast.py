"""Send tensors of any dtype from one rank to its group, many in one message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.compilation import not_compiled
from dpbench.parallel.flat import copy_all, packed_bytes, views_in

PIECE_BYTES = 250 * 1024**2
"""The largest message, unless one tensor is larger; bounds the memory for the copy."""


def broadcast_coalesced(
    tensors: Iterable[Tensor], group: dist.ProcessGroup, source: int = 0
) -> int:
    """Overwrite `tensors` with those of one rank; a collective.

    They travel as bytes, one message per device and 250 MiB, so that the dtypes of a batch norm
    (float statistics, integer counters) need not be sent apart. The version counters of the
    tensors do not change: a graph that saved one of them before stays usable, as buffers are
    written between two forwards of one backward.

    Args:
        tensors: the same shapes and dtypes in the same order on every rank.
        group: the ranks.
        source: the group rank that sends.

    Returns:
        The number of bytes of all tensors.
    """
    total = 0
    for piece in _pieces(tensors):
        Message(piece).send(group, source)
        total += sum(tensor.nbytes for tensor in piece)
    return total


@not_compiled
class Message:
    """Tensors of one device that are sent together, with the flat memory in which they travel."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        device = tensors[0].device
        self.flat = torch.zeros(packed_bytes(tensors), dtype=torch.uint8, device=device)
        # Aliases, whose writes do not count as changes of the tensors.
        self._tensors = [_in_memory(tensor.detach().data) for tensor in tensors]
        self._views = views_in(self.flat, tensors)

    def send(self, group: dist.ProcessGroup, source: int) -> None:
        """Overwrite the tensors with those of one rank of the group; a collective."""
        if is_source := dist.get_rank(group) == source:
            copy_all(self._views, self._tensors)
        dist.broadcast(self.flat, src=dist.get_global_rank(group, source), group=group)
        if not is_source:
            with torch.no_grad():
                copy_all(self._tensors, self._views)


def _in_memory(tensor: Tensor) -> Tensor:
    """The tensor as its memory is, where torch conjugates or negates what is read of it."""
    if tensor.is_conj():
        tensor = tensor.conj()
    # The only name of the undoing that makes no copy.
    return tensor._neg_view() if tensor.is_neg() else tensor


def _pieces(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one device each, with at most PIECE_BYTES or a single one in a piece."""

    def device_of(tensor: Tensor) -> str:
        return str(tensor.device)

    for _, same_device in groupby(sorted(tensors, key=device_of), key=device_of):
        piece: list[Tensor] = []
        size = 0
        for tensor in same_device:
            if piece and size + tensor.nbytes > PIECE_BYTES:
                yield piece
                piece, size = [], 0
            piece.append(tensor)
            size += tensor.nbytes
        yield piece
