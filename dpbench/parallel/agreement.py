"""Checks that all ranks hold the same: before the first collective that relies on it, at any time.

The ranks compare a hash first, in one small message. Only if it differs do they send what they
hold, so that each of them can name the difference. `require_agreement` compares descriptions, and
`check_sync` the values of tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dpbench.parallel.groups import carrier, gather_bytes, gather_values, member_group, name_ranks

DIGEST_BYTES = 16
LISTED = 20
"""Number of tensors that an error names; it only counts the rest."""


class Entry(NamedTuple):
    """One parameter, buffer or option that must be equal on all ranks."""

    kind: str
    name: str
    description: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}: {self.description}"


def describe(
    parameters: Iterable[tuple[str, Tensor]],
    buffers: Iterable[tuple[str, Tensor]],
    options: Mapping[str, Any],
) -> list[Entry]:
    """The options, then parameters and buffers in registration order."""
    entries = [Entry("option", name, repr(value)) for name, value in options.items()]
    entries += [
        Entry("parameter", name, f"{_layout(p)} requires_grad={p.requires_grad}")
        for name, p in parameters
    ]
    return entries + [Entry("buffer", name, describe_tensor(b)) for name, b in buffers]


def describe_tensor(tensor: Tensor) -> str:
    """Shape and dtype, as in "(3, 4) torch.float32"."""
    # A lazy parameter has no shape yet.
    shape = "no shape yet" if is_lazy(tensor) else str(tuple(tensor.shape))
    return f"{shape} {tensor.dtype}"


def require_agreement(
    caller: str,
    mine: Sequence[Entry],
    group: dist.ProcessGroup,
    *,
    device: torch.device | None = None,
) -> None:
    """Compare what every rank of the group holds, in its order; a collective.

    Args:
        caller: names the function in messages.
        mine: what this rank holds.
        group: the ranks.
        device: carries the messages where the group takes CUDA tensors only.

    Raises:
        RuntimeError: on every rank, with the first difference and the ranks that differ from rank
            0.
    """
    held = repr(list(mine)).encode(errors="backslashreplace")
    digest = hashlib.blake2b(held, digest_size=DIGEST_BYTES).digest()
    if len(set(gather_bytes(digest, group, device=device))) > 1:
        sent = gather_values([list(entry) for entry in mine], group, device=device)
        everyone = [[Entry(*map(str, parts)) for parts in entries] for entries in sent]
        raise RuntimeError(_difference(caller, everyone))


def _difference(caller: str, everyone: Sequence[Sequence[Entry]]) -> str:
    for entries in zip_longest(*everyone):
        different = [rank for rank, entry in enumerate(entries) if entry != entries[0]]
        if different:
            first, other = entries[0], entries[different[0]]
            return (
                f"{_expectation(caller, everyone)}, but rank 0 has {first or 'nothing more'}, "
                f"while rank {different[0]} has {other or 'nothing more'} "
                f"(not as on rank 0: {name_ranks(different)})"
            )
    return f"{caller}: the ranks hash the same to different values; do they run the same version?"


def _expectation(caller: str, everyone: Sequence[Sequence[Entry]]) -> str:
    """The message if ranks differ in their number of parameters, in torch's searchable words."""
    counts = [sum(entry.kind == "parameter" for entry in entries) for entries in everyone]
    for rank, count in enumerate(counts):
        if count != counts[0]:
            return (
                f"{caller} expects same model across all ranks, but Rank 0 has {counts[0]} params, "
                f"while rank {rank} has inconsistent {count} params: the same was expected"
            )
    return f"{caller}: expected the same on all ranks"


def _layout(tensor: Tensor) -> str:
    if is_lazy(tensor) or tensor.is_contiguous():
        return describe_tensor(tensor)
    return f"{tuple(tensor.shape)} strides {tensor.stride()} {tensor.dtype}"


def require_module(caller: str, module: object) -> None:
    """
    Raises:
        TypeError: it is no module; `caller` names the function in the message.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{caller}: got {module!r}, expected a torch.nn.Module")


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

    A rank hashes its tensors, at about 1 GB/s, and 16 bytes travel. Only if they differ are the
    hashes of all tensors sent, to find which, and then rank 0's values of those, to find how far.

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
    require_module("check_sync", module)
    tensors = dict(_named_tensors(module, gradients=gradients))
    digests = {name: _digest(tensor) for name, tensor in tensors.items()}
    own = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(digests):
        own.update(f"{name}\0{digests[name]}\0".encode())
    if len(set(gather_bytes(own.digest(), group))) > 1:
        raise RanksDiffer(_tensor_differences(tensors, digests, group))
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


def _tensor_differences(
    tensors: dict[str, Tensor | None], digests: dict[str, str], group: dist.ProcessGroup
) -> str:
    """The error message, the same on all ranks; a collective."""
    everyone = gather_values(digests, group)
    names = dict.fromkeys(name for held in everyone for name in held)
    different = [n for n in names if any(h.get(n) != everyone[0].get(n) for h in everyone)]
    lines = []
    for name in different[:LISTED]:
        theirs = [held.get(name, "absent") for held in everyone]
        # Without the hash, which says nothing to a reader.
        kinds = [digest.rpartition(" ")[0] or digest for digest in theirs]
        tensor = tensors.get(name)
        compared = theirs if len(set(kinds)) == 1 else kinds
        ranks = [rank for rank, other in enumerate(compared) if other != compared[0]]
        if tensor is not None and compared is theirs:
            apart = _largest_difference(tensor, group)
            lines.append(f"{name}, {kinds[0]}: {name_ranks(ranks)}, max abs difference {apart:.3g}")
            continue
        lines.append(
            f"{name}: {kinds[0]} on rank 0, {kinds[ranks[0]]} on rank {ranks[0]} (not as on "
            f"rank 0: {name_ranks(ranks)})"
        )
    if len(different) > LISTED:
        lines.append(f"and {len(different) - LISTED} more")
    return (
        f"the ranks do not hold the same module: {len(different)} of {len(names)} tensors differ "
        "from rank 0\n  " + "\n  ".join(lines)
    )


def _largest_difference(tensor: Tensor, group: dist.ProcessGroup) -> float:
    """The largest |own − rank 0's| of all elements and ranks, NaN if only one of the two is; a
    collective."""
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    own = dense.to(carrier(group), wide).contiguous()
    first = own.clone()
    dist.broadcast(first, group_src=0, group=group)
    # Equal infinities and NaNs are no difference.
    is_same = own.isclose(first, rtol=0.0, atol=0.0, equal_nan=True)
    apart = (own - first).abs().masked_fill(is_same, 0.0)
    return float(torch.tensor(gather_values(apart.max().item(), group), dtype=torch.float64).max())
