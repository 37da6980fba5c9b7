"""Split a batch over devices, and put the replicas' outputs together again, in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from dpbench.parallel.devices import DeviceLike, parse_device, parse_devices
from dpbench.parallel.tree import leaves, map_leaves, move, tensors, zip_leaves


def scatter(obj: Any, devices: Sequence[DeviceLike], dim: int = 0) -> list[Any]:
    """Split every tensor in `obj` along `dim`, one chunk per device; differentiable.

    Args:
        obj: a tensor, or tensors at any depth of list, tuple, namedtuple, dict and dataclass. 0-dim
            tensors go to each device whole; other objects are shared.
        devices: ints (CUDA indices), strings or torch.devices; "cpu" may be repeated.
        dim: the batch dimension; negative counts from the end.

    Returns:
        One object like `obj` per device used: fewer than `devices` if there are fewer samples,
        and one if there is nothing to split.

    Raises:
        IndexError: a tensor has no dimension `dim`.
        ValueError: tensors without samples, or that disagree on their number, or bad devices.
    """
    parsed = parse_devices(devices)
    batched = [tensor for tensor in tensors(obj) if tensor.dim() > 0]
    for tensor in batched:
        if not -tensor.dim() <= dim < tensor.dim():
            raise IndexError(f"cannot split dim {dim} of a tensor of shape {tuple(tensor.shape)}")
    lengths = [tensor.size(dim) for tensor in batched]
    if len(set(lengths)) > 1:
        raise ValueError(f"the tensors to split disagree on the size of dim {dim}: {lengths}")
    sizes = balanced_split(lengths[0], len(parsed)) if lengths else []
    # One split per tensor: its backward is one concatenation, and a tensor that stands at two
    # places is one tensor in each replica, too.
    chunks = {id(tensor): _split(tensor, sizes, dim) for tensor in batched}

    def shard(replica: int) -> Any:
        return map_leaves(
            lambda leaf: chunks[id(leaf)][replica] if id(leaf) in chunks else leaf, obj
        )

    return [move(shard(i), device) for i, device in enumerate(parsed[: max(1, len(sizes))])]


def balanced_split(n: int, parts: int) -> list[int]:
    """Sizes of the chunks of n samples: balanced, the earlier ones get the remainder.

    torch.chunk leaves devices idle: it splits 6 over 4 as 2, 2, 2, this function as 2, 2, 1, 1. No
    chunk is empty: with fewer samples than parts there are fewer chunks. Ranks divide a batch in
    the same way (ParallelSpec.replica_batch_sizes).

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


def _split(tensor: Tensor, sizes: list[int], dim: int) -> Sequence[Tensor]:
    if len(sizes) < 2:
        return (tensor,)
    if tensor.requires_grad and torch.is_grad_enabled():
        return torch.split(tensor, sizes, dim)
    # By .data, so that replicas may write to their chunks at the same time: torch counts writes to
    # each chunk alone, and not as writes to the whole tensor.
    starts = itertools.accumulate(sizes[:-1], initial=0)
    return [tensor.narrow(dim, start, size).data for start, size in zip(starts, sizes, strict=True)]


def gather(outputs: Sequence[Any], device: DeviceLike, dim: int = 0) -> Any:
    """Concatenate the tensors at each place of `outputs` along `dim`; differentiable.

    Args:
        outputs: one object per replica, all with the same containers.
        device: where the results go.
        dim: the batch dimension; negative counts from the end.

    Returns:
        An object like `outputs[0]`. 0-dim tensors are stacked to a 1-D tensor. Leaves that are not
        tensors must be equal on all replicas and come back as they are. An iterable object with
        tensors, such as a cache of transformers, is made by its class from the gathered items.

    Raises:
        ValueError: nothing to gather, or outputs that differ in containers, dtypes, other leaves
            or in a dimension other than `dim`; the message names the replica.
        IndexError: a tensor has no dimension `dim`.
    """
    return gather_outputs(outputs, parse_device(device), dim)


def gather_outputs(
    outputs: Sequence[Any],
    device: torch.device,
    dim: int,
    weights: Sequence[float] = (),
    path: str = "output",
) -> Any:
    """Like `gather`, for a parsed device; with `weights` of the replicas, 0-dim tensors are not
    stacked, but become Σ weight · tensor."""
    if not outputs:
        raise ValueError("got no outputs to gather, expected one per replica")

    def join(parts: list[Any], path: str) -> Any:
        first = parts[0]
        if isinstance(first, Tensor) and first.dim() and not -first.dim() <= dim < first.dim():
            raise IndexError(f"cannot gather {path} along dim {dim}: shape {tuple(first.shape)}")
        if _are_iterables_of_tensors(parts):
            # As torch's gather does it, for which transformers' caches have their constructor.
            items = zip(*parts, strict=True)
            return type(first)(gather_outputs(item, device, dim, weights, path) for item in items)
        for index, part in enumerate(parts):
            if not _fits(part, first, dim):
                raise ValueError(
                    f"cannot gather {path}: replica {index} returned {_described(part)}, replica 0 "
                    f"returned {_described(first)}"
                )
        if not isinstance(first, Tensor):
            return first
        moved = [part.to(device) for part in parts]
        if first.dim() == 0 and not weights:
            return torch.stack(moved)
        if len(moved) == 1:
            return moved[0]
        if first.dim() == 0:
            weighted = [one * weight for one, weight in zip(moved, weights, strict=True)]
            return torch.stack(weighted).sum()
        return torch.cat(moved, dim)

    return zip_leaves(join, outputs, path)


def _are_iterables_of_tensors(parts: Sequence[Any]) -> bool:
    """Whether each replica has another object of one class, which has tensors in an order: a set
    has none, and an iterator could be read only once."""
    first = parts[0]
    if not isinstance(first, Iterable) or isinstance(first, (Tensor, Set, Iterator)):
        return False
    if {*map(type, parts)} != {type(first)} or all(part is first for part in parts):
        return False
    return any(isinstance(item, Tensor) for item in leaves([*first]))


def _fits(part: Any, first: Any, dim: int) -> bool:
    """Whether a leaf can be joined with that of replica 0."""
    if not (isinstance(part, Tensor) and isinstance(first, Tensor)):
        return part is first or (not isinstance(part, Tensor) and bool(part == first))
    if part.dtype != first.dtype or part.dim() != first.dim():
        return False
    kept_dims = [n for n in range(part.dim()) if n != dim % part.dim()]
    return all(part.size(n) == first.size(n) for n in kept_dims)


def _described(leaf: Any) -> str:
    return f"{leaf.dtype} of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else repr(leaf)
