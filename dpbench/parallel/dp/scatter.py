"""Splits a batch over the replicas' devices, in order; splits and joins packed sequences."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dpbench.parallel.devices import DeviceLike, parse_devices
from dpbench.parallel.tree import leaves, map_leaves, move


def scatter(obj: Any, devices: Sequence[DeviceLike], dim: int = 0) -> list[Any]:
    """Split every tensor in `obj` along `dim`, one chunk per device; differentiable.

    Args:
        obj: a tensor, or tensors at any depth of list, tuple, namedtuple, dict and dataclass.
            0-dim tensors and what is marked with NoScatter go to each device whole; a
            PackedSequence is split by its sequences; other objects are shared.
        devices: ints (CUDA indices), strings or torch.devices; "cpu" may be repeated.
        dim: the batch dimension, negative counts from the end.

    Returns:
        One object like `obj` per device used: fewer than `devices` if there are fewer samples,
        and one if there are none, or nothing to split.

    Raises:
        IndexError: a tensor has no dimension `dim`.
        ValueError: tensors that disagree on the number of samples, or bad devices.
    """
    return scatter_shards(obj, parse_devices(devices), dim).values


def balanced_split(n: int, parts: int) -> list[int]:
    """Sizes of the chunks of n samples: balanced, the earlier ones get the remainder.

    torch.chunk leaves devices idle: it splits 6 over 4 as 2, 2, 2, this function as 2, 2, 1, 1. No
    chunk is empty: with fewer samples than parts there are fewer chunks. Ranks divide a batch in
    the same way (dpbench.specs.shares).

    Raises:
        ValueError: n or parts is below 1.
    """
    if n < 1:
        raise ValueError(f"got {n} samples to split, expected at least 1")
    if parts < 1:
        raise ValueError(f"got {parts} parts to split into, expected at least 1")
    parts = min(n, parts)
    size, remainder = divmod(n, parts)
    return [size + 1] * remainder + [size] * (parts - remainder)


class NoScatter:
    """Marks an argument that every replica gets whole, e.g. a table whose rows are no samples."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True, slots=True)
class Shards:
    """One object per replica, and the number of samples in each; the numbers are empty if there
    were none."""

    values: list[Any]
    sizes: list[int]
    views: list[tuple[Tensor, Sequence[Any]]] = field(default_factory=list)
    """Arguments, and their chunks in the same memory."""

    @property
    def weights(self) -> list[float]:
        """Each replica's share of the samples; they add up to 1."""
        total = sum(self.sizes)
        return [size / total for size in self.sizes] if total else [1.0]

    def note_writes(self) -> None:
        """Count replicas' writes to chunks as writes to the arguments, for autograd's check of
        saved tensors."""
        for argument, chunks in self.views:
            if any(not chunk.is_inference() and chunk._version for chunk in chunks):
                torch.autograd.graph.increment_version(argument)


def scatter_shards(obj: Any, devices: Sequence[torch.device], dim: int) -> Shards:
    """Like `scatter`, for parsed devices, with the sizes of the shards."""
    total = batch_size(obj, dim)
    sizes = balanced_split(total, len(devices)) if total else []
    used = devices[: max(1, len(sizes))]
    # One split per leaf, so that its backward is one concatenation; and the same tensor at two
    # places stays the same tensor at two places.
    chunks = {id(leaf): _split(leaf, sizes, dim) for leaf in _batched(obj)}

    def shard(replica: int) -> Any:
        def part(leaf: Any) -> Any:
            return chunks[id(leaf)][replica] if id(leaf) in chunks else _unmarked(leaf)

        return map_leaves(part, obj, (PackedSequence,))

    views = [
        (leaf, chunks[id(leaf)])
        for leaf in _batched(obj)
        if isinstance(leaf, Tensor) and len(sizes) > 1 and not _is_recorded(leaf)
    ]
    return Shards([move(shard(i), device) for i, device in enumerate(used)], sizes, views)


def _unmarked(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, NoScatter) else leaf


def batch_size(obj: Any, dim: int) -> int | None:
    """The size of `dim` in the tensors of `obj`, and the number of sequences in packed ones.

    Returns:
        None if there is nothing to split.

    Raises:
        IndexError: a tensor has no dimension `dim`.
        ValueError: the sizes differ.
    """
    sizes = [_size(leaf, dim) for leaf in _batched(obj)]
    if len(set(sizes)) > 1:
        raise ValueError(f"the tensors to split disagree on the size of dim {dim}: {sizes}")
    return sizes[0] if sizes else None


def _batched(obj: Any) -> list[Tensor | PackedSequence]:
    """The leaves that are to be split."""
    return [
        leaf
        for leaf in leaves(obj, (PackedSequence,))
        if isinstance(leaf, PackedSequence) or (isinstance(leaf, Tensor) and leaf.dim() > 0)
    ]


def _size(leaf: Tensor | PackedSequence, dim: int) -> int:
    if isinstance(leaf, PackedSequence):
        return count_sequences(leaf)
    if not -leaf.dim() <= dim < leaf.dim():
        raise IndexError(f"cannot split dim {dim} of a tensor of shape {tuple(leaf.shape)}")
    return leaf.size(dim)


def _split(
    leaf: Tensor | PackedSequence, sizes: list[int], dim: int
) -> Sequence[Tensor | PackedSequence]:
    if len(sizes) < 2:
        return (leaf,)
    if isinstance(leaf, PackedSequence):
        return split_packed(leaf, sizes)
    if _is_recorded(leaf):
        # One node for all chunks, whose backward is one concatenation.
        return torch.split(leaf, sizes, dim)
    # A module may write to each chunk, with or without a history, as if the other
    # chunks were in other memory. `Shards.note_writes` counts the writes that .data hides.
    starts = itertools.accumulate(sizes[:-1], initial=0)
    return [leaf.narrow(dim, start, size).data for start, size in zip(starts, sizes, strict=True)]


def _is_recorded(leaf: Tensor) -> bool:
    return leaf.requires_grad and torch.is_grad_enabled()


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
