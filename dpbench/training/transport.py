"""The content of a file from rank 0 to all ranks, as a tensor of bytes, in pieces."""

from __future__ import annotations

import torch
import torch.distributed as dist

from dpbench.measure.rank_group import RankGroup

PIECE_BYTES = 64 * 1024**2
"""Of one message: bounds what the backend copies at a time."""


def broadcast_bytes(data: bytes | None, ranks: RankGroup) -> bytes:
    """`data` of rank 0, on every rank; a collective on the control group. Others pass None."""
    if ranks.control is None:
        assert data is not None
        return data
    (length,), *_ = ranks.gather([0 if data is None else len(data)])
    received = bytearray(int(length)) if data is None else bytearray(data)
    if received:
        source = dist.get_global_rank(ranks.control, 0)
        for piece in torch.split(torch.frombuffer(received, dtype=torch.uint8), PIECE_BYTES):
            dist.broadcast(piece, src=source, group=ranks.control)
    return bytes(received) if data is None else data
