"""Send tensors of any dtype from one rank to its group, many in one message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor

PIECE_BYTES = 250 * 1024**2  # of one message; bounds the memory for the copy


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
        The number of bytes sent.
    """
    sender = dist.get_global_rank(group, source)
    total = 0
    for piece in _pieces(tensors):
        flat = torch.cat([_as_bytes(tensor) for tensor in piece])
        dist.broadcast(flat, src=sender, group=group)
        if dist.get_rank(group) != source:
            _unpack(flat, piece)
        total += flat.numel()
    return total


def _pieces(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one device each, with at most PIECE_BYTES or a single one in a piece.

    Sorted from wide to narrow elements, so that each starts at a multiple of its element size.
    """

    def key(tensor: Tensor) -> tuple[str, int]:
        return str(tensor.device), -tensor.element_size()

    for _, same_device in groupby(sorted(tensors, key=key), key=lambda tensor: tensor.device):
        piece: list[Tensor] = []
        size = 0
        for tensor in same_device:
            if piece and size + tensor.nbytes > PIECE_BYTES:
                yield piece
                piece, size = [], 0
            piece.append(tensor)
            size += tensor.nbytes
        yield piece


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


def _unpack(flat: Tensor, piece: Sequence[Tensor]) -> None:
    with torch.no_grad():
        parts = torch.split(flat, [tensor.nbytes for tensor in piece])
        for tensor, part in zip(piece, parts, strict=True):
            tensor.data.copy_(part.view(tensor.dtype).view(tensor.shape))
