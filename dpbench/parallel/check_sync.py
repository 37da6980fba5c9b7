"""Check at any time whether all ranks hold the same tensors; cheap while they do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.groups import carrier, gather_bytes, gather_values, member_group, name_ranks

DIGEST_BYTES = 16
LISTED = 20
"""Number of tensors that an error names; it only counts the rest."""


class RanksDiffer(RuntimeError):
    """The ranks hold different tensors; the message names them."""


class Compared(NamedTuple):
    """The tensors that `check_sync` compared on this rank, all equal to the other ranks'."""

    tensors: int
    nbytes: int


def check_sync(
    module: nn.Module,
    *,
    process_group: dist.ProcessGroup | None = None,
    gradients: bool = False,
) -> Compared:
    """Compare parameters and buffers over the ranks, bit for bit; a collective.

    A rank hashes its tensors, at about 1 GB/s, and 16 bytes travel. Only if the hashes differ are
    tensors sent, one after the other, to find where they differ and by how much.

    Args:
        module: plain or wrapped; the same order of construction on every rank is not needed, as
            tensors are compared by name.
        process_group: the ranks; None means the default group.
        gradients: compare `.grad` of every parameter, too.

    Returns:
        How many tensors and bytes were compared.

    Raises:
        RanksDiffer: a RuntimeError, on every rank, with the tensors that differ, the ranks of the
            group whose values differ from its rank 0's, and the largest absolute difference; a
            tensor that a rank does not have, and another shape or dtype, count as different.
    """
    group = member_group(process_group, "check_sync")
    if not isinstance(module, nn.Module):
        raise TypeError(f"check_sync: got {module!r}, expected a torch.nn.Module")
    tensors = dict(_named_tensors(module, gradients=gradients))
    digests = {name: _digest(tensor) for name, tensor in tensors.items()}
    own = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(digests):
        own.update(f"{name}\0{digests[name]}\0".encode())
    if len(set(gather_bytes(own.digest(), group))) > 1:
        raise RanksDiffer(_difference(tensors, digests, group))
    held = [tensor for tensor in tensors.values() if tensor is not None]
    return Compared(len(tensors), sum(tensor.nbytes for tensor in held))


def _named_tensors(module: nn.Module, *, gradients: bool) -> Iterator[tuple[str, Tensor | None]]:
    for name, parameter in module.named_parameters():
        yield f"parameter {name!r}", parameter.detach()
    for name, buffer in module.named_buffers():
        yield f"buffer {name!r}", buffer.detach()
    if gradients:
        for name, parameter in module.named_parameters():
            yield f"gradient of {name!r}", parameter.grad


def _digest(tensor: Tensor | None) -> str:
    """Shape, dtype and a hash of the elements; "none" for a gradient that is not there."""
    if tensor is None:
        return "none"
    content = hashlib.blake2b(digest_size=DIGEST_BYTES)
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    flat = dense.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    content.update(flat.view(torch.uint8).numpy().data)
    return f"{tuple(tensor.shape)} {tensor.dtype} {content.hexdigest()}"


def _difference(
    tensors: dict[str, Tensor | None], digests: dict[str, str], group: dist.ProcessGroup
) -> str:
    """The error message, the same on all ranks; a collective."""
    everyone = gather_values(digests, group)
    names = dict.fromkeys(name for held in everyone for name in held)
    different = [n for n in names if any(h.get(n) != everyone[0].get(n) for h in everyone)]
    lines = [
        _describe(name, [held.get(name) for held in everyone], tensors.get(name), group)
        for name in different[:LISTED]
    ]
    if len(different) > LISTED:
        lines.append(f"and {len(different) - LISTED} more")
    return (
        f"the ranks do not hold the same module: {len(different)} of {len(names)} tensors differ "
        "from rank 0\n  " + "\n  ".join(lines)
    )


def _describe(
    name: str, digests: list[str | None], tensor: Tensor | None, group: dist.ProcessGroup
) -> str:
    """One line on a tensor that differs; a collective if all ranks have it in one shape."""
    kinds = [_kind(digest) for digest in digests]
    if len(set(kinds)) == 1:
        assert tensor is not None
        ranks = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        worst = _largest_difference(tensor, group)
        return f"{name}, {kinds[0]}: {name_ranks(ranks)}, max abs difference {worst:.3g}"
    ranks = [rank for rank, kind in enumerate(kinds) if kind != kinds[0]]
    return (
        f"{name}: {kinds[0]} on rank 0, {kinds[ranks[0]]} on rank {ranks[0]}"
        f" (not as on rank 0: {name_ranks(ranks)})"
    )


def _kind(digest: str | None) -> str:
    """A tensor's shape and dtype, read from its digest."""
    if digest is None:
        return "absent"
    return digest if digest == "none" else digest.rpartition(" ")[0]


def _largest_difference(tensor: Tensor, group: dist.ProcessGroup) -> float:
    """max |own − rank 0's| over all elements and ranks; NaN if only one of the two is a NaN."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    own = dense.to(carrier(group), wide)
    first = own.clone(memory_format=torch.contiguous_format)
    dist.broadcast(first, src=dist.get_global_rank(group, 0), group=group)
    same = (own == first) | (own.isnan() & first.isnan())
    apart = (own - first).abs().masked_fill(same, 0.0)
    differences: list[float] = gather_values(apart.max().item(), group)
    return max(differences, key=lambda difference: (difference != difference, difference))
