"""Splits packed sequences of an RNN over replicas, and joins them again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


def split_packed(packed: PackedSequence, sizes: Sequence[int]) -> list[PackedSequence]:
    """Split into consecutive groups of these sizes, in the order of packing; differentiable."""
    padded, lengths = pad_packed_sequence(packed, batch_first=True)
    parts = zip(torch.split(padded, list(sizes)), torch.split(lengths, list(sizes)), strict=True)
    return [_pack(part, of_part, _is_sorted(packed)) for part, of_part in parts]


def join_packed(parts: Sequence[PackedSequence], device: torch.device) -> PackedSequence:
    """All sequences of the parts, one after the other, on `device`; differentiable."""
    moved = [part.to(device) for part in parts]  # type: ignore[arg-type]
    unpacked = [pad_packed_sequence(part, batch_first=True) for part in moved]
    longest = max(padded.size(1) for padded, _ in unpacked)
    padded = torch.cat([_widen(padded, longest) for padded, _ in unpacked])
    lengths = torch.cat([lengths for _, lengths in unpacked])
    in_order = all(map(_is_sorted, parts)) and bool((lengths.diff() <= 0).all())
    return _pack(padded, lengths, in_order)


def count_sequences(packed: PackedSequence) -> int:
    """How many sequences there are."""
    return int(packed.batch_sizes[0])


def _is_sorted(packed: PackedSequence) -> bool:
    """Whether the user sorted the sequences by length, so that packing moved none of them."""
    return packed.sorted_indices is None


def _pack(padded: Tensor, lengths: Tensor, in_order: bool) -> PackedSequence:
    longest = int(lengths.max())
    return pack_padded_sequence(
        padded[:, :longest], lengths, batch_first=True, enforce_sorted=in_order
    )


def _widen(padded: Tensor, length: int) -> Tensor:
    """Pad to `length` steps; (sequences, steps, features…)."""
    missing = length - padded.size(1)
    if not missing:
        return padded
    return torch.cat([padded, padded.new_zeros(padded.size(0), missing, *padded.shape[2:])], dim=1)
