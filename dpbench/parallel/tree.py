"""Nested arguments and outputs: visits every leaf, and rebuilds the containers around new ones.

Containers are list, tuple, namedtuple, dict and dataclass instances, with their subclasses.
Everything else, None and strings included, is a leaf. So is a batch of a class that selects its own
samples, such as a batch of graphs: see `is_own_batch`. A PackedSequence is a container without its
`batch_sizes`, which belong on the CPU wherever the rest is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def is_own_batch(node: object) -> bool:
    """Whether an object that is no tensor holds samples, which these methods show.

    len(batch): the number of samples.
    batch.select(indices): a batch of the samples at `indices`, an int64 tensor.
    batch.to(device, dtype=None): the batch there; with dtype, its floating-point tensors in it.
    """
    return hasattr(node, "select") and hasattr(node, "to") and not isinstance(node, Tensor)


def children(node: object) -> dict[Any, Any] | None:
    """The parts of a container by key, in order; None for a leaf."""
    if isinstance(node, Tensor) or is_own_batch(node):
        return None
    if isinstance(node, dict):
        return node
    if isinstance(node, PackedSequence):
        return {name: part for name, part in node._asdict().items() if name != "batch_sizes"}
    if isinstance(node, (list, tuple)):
        return dict(enumerate(node))
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    return None


def rebuild(like: Any, parts: dict[Any, Any]) -> Any:
    """A container of the type of `like` (and its extra state) that holds `parts`.

    Only the classes of tuples are called, with all parts or, if named, with one argument each.
    """
    if hasattr(like, "_replace"):
        return like._replace(**dict(zip(like._fields, parts.values(), strict=False)))
    if isinstance(like, tuple):
        return type(like)(parts.values())
    twin = copy.copy(like)
    if isinstance(like, list):
        twin[:] = parts.values()
    elif isinstance(like, dict):
        twin.update(parts)
    else:
        for name, part in parts.items():
            object.__setattr__(twin, name, part)  # a frozen dataclass refuses setattr
    return twin


def leaves(tree: object) -> Iterator[Any]:
    """Every leaf, depth first, in order."""
    parts = children(tree)
    if parts is None:
        yield tree
        return
    for part in parts.values():
        yield from leaves(part)


def tensors(tree: object) -> list[Tensor]:
    """The tensors among the leaves, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with every leaf replaced by `function` of it; empty containers are shared."""
    parts = children(tree)
    if parts is None:
        return function(tree)
    if not parts:
        return tree
    return rebuild(tree, {key: map_leaves(function, part) for key, part in parts.items()})


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The tree with every tensor replaced by `function` of it; other leaves are shared."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def zip_leaves(
    function: Callable[[list[Any], str], Any], trees: Sequence[Any], path: str = "output"
) -> Any:
    """One tree whose leaves are `function` of the leaves at the same place of all `trees`.

    Args:
        function: gets the leaves, one per tree, and their path ("output[0].loss").
        trees: at least one; all must have the containers and keys of the first.
        path: of the trees.

    Raises:
        ValueError: naming the first tree that deviates and where.
    """
    first = trees[0]
    for index, tree in enumerate(trees):
        if (children(tree) is None) != (children(first) is None) or (
            children(first) is not None and type(tree) is not type(first)
        ):
            raise _deviation(index, path, type(tree).__name__, type(first).__name__)
    parts = children(first)
    if parts is None:
        return function(list(trees), path)
    everyone = [children(tree) or {} for tree in trees]
    for index, other in enumerate(everyone):
        if other.keys() != parts.keys():
            raise _deviation(index, path, f"the keys {list(other)}", f"the keys {list(parts)}")
    return rebuild(
        first,
        {
            key: zip_leaves(function, [other[key] for other in everyone], f"{path}[{key!r}]")
            for key in parts
        },
    )


def _deviation(index: int, path: str, got: object, expected: object) -> ValueError:
    return ValueError(f"replica {index} returned {got} at {path}, replica 0 returned {expected}")


def move(tree: Any, device: torch.device) -> Any:
    """The tree with its tensors on `device`; tensors already there are shared.

    A copy to a GPU from memory that is not pinned, or between GPUs, is queued. All others are over
    when this returns: the caller may write to pinned memory again, and read what came to the host.
    """

    def moved(leaf: Any) -> Any:
        if is_own_batch(leaf):
            return leaf.to(device)
        if not isinstance(leaf, Tensor):
            return leaf
        queued = device.type == "cuda" and not (leaf.is_cpu and leaf.is_pinned())
        return leaf.to(device, non_blocking=queued)

    return map_leaves(moved, tree)
