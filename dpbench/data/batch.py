"""A batch: inputs and targets, each a tensor or a tree of tensors, samples first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dpbench.errors import UsageError
from dpbench.parallel.tree import children

Samples = Any
"""A tensor, or tensors in tuples, lists, dicts and dataclasses; the first dimension of each is
the sample."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The samples of one rank in one micro-step, on its device."""

    inputs: Samples
    """Each tensor is (samples, …)."""
    targets: Samples
    """Each tensor is (samples, …)."""
    weight: float
    """Factor of their mean loss in the backward pass, their `averaging_weight` among all samples of
    the step: the mean over ranks of Σ weight × mean loss is the mean loss of the step."""
    sample_count: int


def call(module: Callable[..., Any], inputs: Samples) -> Any:
    """The outputs of `module`, or of its wrapper, for a batch.

    A tuple is passed as positional arguments, a dict as keyword arguments, anything else as the
    only argument, like a data loader's batch in torch's DataParallel.
    """
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, tuple):
        return module(*inputs)
    return module(inputs)


def sample_count(**batch: Samples) -> int:
    """The number of samples, which is the same in every tensor of every tree of `batch`.

    The keywords are the names that an error gives to the trees: inputs=…, targets=….

    Raises UsageError, with the place, unless every leaf is a tensor with as many samples.
    """
    counts: dict[str, int] = {}
    for name, tree in batch.items():
        named = list(named_leaves(tree, name))
        if not named:
            raise UsageError(f"{name}: got an empty {type(tree).__name__}, expected a tensor in it")
        for path, leaf in named:
            if not isinstance(leaf, torch.Tensor):
                raise UsageError(f"{path}: got {type(leaf).__name__}, expected a tensor")
            if leaf.layout != torch.strided:  # torch cannot take some of its samples
                raise UsageError(f"{path}: got a {leaf.layout} tensor, expected a dense one")
            if leaf.dim() == 0:
                raise UsageError(f"{path}: got a tensor without dimensions, expected samples first")
            counts[path] = len(leaf)
    (first, expected), *others = counts.items()
    for path, count in others:
        if count != expected:
            raise UsageError(
                f"got {expected} {first} and {count} {path}; expected as many of both: the first "
                "dimension of every tensor is the sample"
            )
    return expected


def named_leaves(tree: Samples, name: str) -> Iterator[tuple[str, Any]]:
    """Every leaf with its place in the tree, such as inputs['mask']."""
    parts = children(tree)
    if parts is None:
        yield name, tree
        return
    for key, part in parts.items():
        yield from named_leaves(part, f"{name}[{key!r}]")
