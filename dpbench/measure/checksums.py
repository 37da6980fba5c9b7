"""Short hashes that prove what a rank held and what it trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from dpbench.measure.whole import whole

DIGEST_BYTES = 8


def tensors_checksum(tensors: Iterable[torch.Tensor]) -> str:
    """A hash of the bytes of all tensors in order; equal only if every bit is.

    Where ranks hold shards it is that of the whole tensors, and a collective.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for tensor in tensors:
        flat = whole(tensor.detach()).cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
