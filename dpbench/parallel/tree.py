"""Nested arguments and outputs: visits every leaf, and rebuilds the containers around new ones.

Containers are what torch's pytree knows, which is also how libraries register their classes
(transformers its outputs), and instances of other dataclasses and of subclasses of dict, list and
tuple. Everything else, None and strings included, is a leaf, and stays the object that it is. A
PackedSequence is a container without its `batch_sizes`, which belong on the CPU wherever the rest
is.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from dpbench.parallel.devices import copy_to_device
from dpbench.parallel.torch_private import pytree


def children(node: object) -> dict[Any, Any] | None:
    """The parts of a container by key, in order; None for a leaf."""
    container = _opened(node)
    return None if container is None else container[0]


def _opened(node: Any) -> tuple[dict[Any, Any], Callable[[dict[Any, Any]], Any]] | None:
    """The parts of a container, and a function that makes one like it of others; None for a leaf.

    That one has the class of the container and its other state.
    """
    if isinstance(node, Tensor):
        return None
    if isinstance(node, PackedSequence):
        parts = {name: part for name, part in node._asdict().items() if name != "batch_sizes"}
        return parts, lambda new: node._replace(**new)
    if isinstance(node, tuple):
        make = getattr(node, "_make", type(node))  # a namedtuple takes an argument for each part
        return dict(enumerate(node)), lambda new: make(new.values())
    names: list[str] = []
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        names = [field.name for field in dataclasses.fields(node)]
    # Not tree_flatten, each call of which leaves a cycle that holds the node until it is collected.
    if (registered := pytree.SUPPORTED_NODES.get(type(node))) is not None:
        values, context = registered.flatten_fn(node)
        keys: Any = list(node) if isinstance(node, dict) else names
        if len(keys) != len(values):
            keys = range(len(values))
        parts = dict(zip(keys, values, strict=True))
        return parts, lambda new: registered.unflatten_fn([*new.values()], context)
    if isinstance(node, dict):
        return dict(node), partial(_copy_with, node, operator.setitem)
    if isinstance(node, list):
        return dict(enumerate(node)), partial(_copy_with, node, operator.setitem)
    if names:
        # A frozen dataclass refuses setattr.
        parts = {name: getattr(node, name) for name in names}
        return parts, partial(_copy_with, node, object.__setattr__)
    return None


def _copy_with(node: Any, put: Callable[[Any, Any, Any], object], parts: dict[Any, Any]) -> Any:
    """A copy of a container in which `put` has replaced the parts."""
    twin = copy.copy(node)
    for key, part in parts.items():
        put(twin, key, part)
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
    container = _opened(tree)
    if container is None:
        return function(tree)
    parts, rebuild = container
    if not parts:
        return tree
    return rebuild({key: map_leaves(function, part) for key, part in parts.items()})


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
        path: where the trees are.

    Raises:
        ValueError: naming the first tree that deviates and where.
    """
    containers = [_opened(tree) for tree in trees]
    if not any(containers):
        return function(list(trees), path)
    kinds = [
        type(tree).__name__ + (f" with the keys {list(container[0])}" if container else "")
        for tree, container in zip(trees, containers, strict=True)
    ]
    for index, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(
                f"replica {index} returned {kind} at {path}, replica 0 returned {kinds[0]}"
            )
    opened = [container for container in containers if container]
    parts, rebuild = opened[0]
    return rebuild(
        {
            key: zip_leaves(function, [node[key] for node, _ in opened], f"{path}[{key!r}]")
            for key in parts
        }
    )


def move(tree: Any, device: torch.device) -> Any:
    """The tree with its tensors on `device`; tensors already there are shared.

    A copy between GPUs is queued. All others are over when this returns: the caller may write to
    its tensors again, and read what came to the host.
    """

    def moved(tensor: Tensor) -> Tensor:
        on_cuda = device.type == "cuda"
        if tensor.is_cpu and on_cuda:
            return copy_to_device(tensor, device)
        return tensor.to(device, non_blocking=on_cuda)

    return map_tensors(moved, tree)
