"""Tensors of any dtype, sent from one rank to its group."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist
from torch import Tensor

from dpbench.parallel import torch_private

PIECE_BYTES = 250 * 1024**2
"""Largest message, unless one tensor is larger; limits the memory for the copy."""


def broadcast_coalesced(
    tensors: Iterable[Tensor], group: dist.ProcessGroup, source: int = 0
) -> int:
    """Overwrite `tensors` with those of one rank; a collective.

    The version counters of the tensors do not change, so a graph that saved one of them stays
    usable: buffers may be written between two forwards that share a backward.

    Args:
        tensors: dense; the same shapes and dtypes in the same order on every rank.
        group: the ranks.
        source: the group rank that sends.

    Returns:
        The number of bytes of all tensors.
    """
    aliases = [tensor.detach().data for tensor in tensors]  # with version counters of their own
    if aliases:
        torch_private.broadcast_coalesced(aliases, group, source, PIECE_BYTES)
    return sum(alias.nbytes for alias in aliases)
