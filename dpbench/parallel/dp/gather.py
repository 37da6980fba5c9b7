"""Puts the replicas' outputs together again, in the order of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from dpbench.parallel.devices import DeviceLike, parse_device
from dpbench.parallel.dp.scatter import join_packed
from dpbench.parallel.tree import zip_leaves

ScalarRule = Callable[[list[Tensor], str], Tensor]


def gather(outputs: Sequence[Any], device: DeviceLike, dim: int = 0) -> Any:
    """Concatenate the tensors at each place of `outputs` along `dim`; differentiable.

    Args:
        outputs: one object per replica, all with the same containers.
        device: where the results go.
        dim: the batch dimension, negative counts from the end.

    Returns:
        An object like `outputs[0]`. 0-dim tensors are stacked to a 1-D tensor, and packed
        sequences are packed together, whatever `dim` is. Leaves that are not tensors must be equal
        on all replicas and come back as they are.

    Raises:
        ValueError: nothing to gather, or outputs that differ in containers, dtypes, other leaves
            or in a dimension other than `dim`; the message names the replica.
        IndexError: a tensor has no dimension `dim`.
    """
    return gather_outputs(
        outputs, parse_device(device), dim, lambda scalars, _: torch.stack(scalars)
    )


def gather_outputs(
    outputs: Sequence[Any], device: torch.device, dim: int, scalar_rule: ScalarRule
) -> Any:
    """Like `gather`, with `scalar_rule(scalars, path)` for 0-dim tensors, already on `device`."""
    if not outputs:
        raise ValueError("got no outputs to gather, expected one per replica")

    def join(parts: list[Any], path: str) -> Any:
        if isinstance(parts[0], PackedSequence):
            return join_packed(parts, device)
        if not isinstance(parts[0], Tensor):
            return _same(parts, path)
        _check(parts, dim, path)
        moved = [part.to(device) for part in parts]
        if parts[0].dim() == 0:
            return scalar_rule(moved, path)
        return moved[0] if len(moved) == 1 else torch.cat(moved, dim)

    return zip_leaves(join, outputs, whole=(PackedSequence,))


def weighted_scalars(reduction: str, weights: Sequence[float]) -> ScalarRule:
    """The rule by which 0-dim outputs of several replicas become one.

    Args:
        reduction: "mean": Σ weight_r · value_r, the mean over all samples of losses that are means
            over the replica's samples. "sum": Σ value_r.
        weights: each replica's share of the samples.
    """

    def rule(scalars: list[Tensor], path: str) -> Tensor:
        if reduction == "sum":
            return torch.stack(scalars).sum()
        if not (scalars[0].is_floating_point() or scalars[0].is_complex()):
            raise TypeError(
                f"{path} is a 0-dim tensor of {scalars[0].dtype} on each replica, which has no "
                "mean; return it with a batch dimension, as floating point, "
                'or use loss_reduction="sum"'
            )
        if len(scalars) == 1:
            return scalars[0]
        return torch.stack([scalar * w for scalar, w in zip(scalars, weights, strict=True)]).sum()

    return rule


def _same(parts: list[Any], path: str) -> Any:
    """The leaf that is no tensor, if all replicas returned an equal one."""
    for index, part in enumerate(parts):
        if isinstance(part, Tensor) or not _equal(part, parts[0], path):
            raise ValueError(
                f"cannot gather {path}: replica {index} returned {part!r}, "
                f"replica 0 returned {parts[0]!r}"
            )
    return parts[0]


def _equal(one: Any, other: Any, path: str) -> bool:
    """Whether two leaves are the same or equal; a NaN equals a NaN here."""
    if one is other:
        return True
    try:
        return bool(one == other) or bool(one != one and other != other)
    except Exception as error:  # == of an array has no single truth value; other classes may raise
        raise ValueError(
            f"cannot gather {path}: whether one {type(one).__name__} equals another cannot be "
            f"told ({type(error).__name__}: {error}); return tensors, or plain values"
        ) from None


def _check(parts: list[Any], dim: int, path: str) -> None:
    """Raise unless all parts are tensors that can be concatenated along `dim`."""
    first: Tensor = parts[0]
    if first.dim() > 0 and not -first.dim() <= dim < first.dim():
        raise IndexError(f"cannot gather {path} along dim {dim}: shape {tuple(first.shape)}")
    for index, part in enumerate(parts):
        if not isinstance(part, Tensor):
            raise ValueError(
                f"cannot gather {path}: replica {index} returned {part!r}, replica 0 a tensor"
            )
        if part.dtype != first.dtype:
            raise ValueError(
                f"cannot gather {path}: replica {index} returned {part.dtype}, "
                f"replica 0 returned {first.dtype}"
            )
        if part.dim() != first.dim() or _shape_without(part, dim) != _shape_without(first, dim):
            raise ValueError(
                f"cannot gather {path} along dim {dim}: replica {index} returned the shape "
                f"{tuple(part.shape)}, replica 0 returned {tuple(first.shape)}"
            )


def _shape_without(tensor: Tensor, dim: int) -> tuple[int, ...]:
    shape = list(tensor.shape)
    if shape:
        shape[dim] = -1
    return tuple(shape)
