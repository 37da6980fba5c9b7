"""Tensors of any dtype, sent from one rank to its group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.flat import copy_all, packed_bytes, views_in
from dpbench.parallel.torch_private import not_compiled

PIECE_BYTES = 250 * 1024**2
"""Largest message, unless one tensor is larger; limits the memory for the copy."""


def broadcast_coalesced(
    tensors: Iterable[Tensor], group: dist.ProcessGroup, source: int = 0
) -> int:
    """Overwrite `tensors` with those of one rank; a collective.

    They travel as bytes, one message per device and 250 MiB, so that the dtypes of a batch norm
    (float statistics, integer counters) need not be sent apart. The version counters of the
    tensors do not change, so a graph that saved one of them stays usable: buffers may be written
    between two forwards that share a backward.

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
    """Tensors of one device that are sent together, and the flat buffer in which they travel."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        device = tensors[0].device
        self.flat = torch.zeros(packed_bytes(tensors), dtype=torch.uint8, device=device)
        # Aliases: writes through them do not increase the tensors' version counters.
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
    """The tensor as stored in memory, without torch's lazy conjugation or negation."""
    if tensor.is_conj():
        tensor = tensor.conj()
    # Underscored, but the only way to undo it without a copy.
    return tensor._neg_view() if tensor.is_neg() else tensor


def _pieces(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Groups of tensors on one device, each with at most PIECE_BYTES or a single tensor."""

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
