"""Averaging gradients by hand, for a module that nothing wraps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.averaging import average, require_plain
from dpbench.parallel.groups import gather_objects, member_group, name_ranks

_SYNCED = "_dpbench_synced_version"
"""Set on a gradient: its version counter when it was averaged. A backward counts further."""


class _Holding(NamedTuple):
    """What the ranks must know of each other before the first collective on gradients."""

    layout: str
    """A hash of the parameters' shapes and dtypes."""
    present: tuple[bool, ...]
    """Whether each parameter has a gradient."""
    objection: str | None


def sync_gradients(
    module: nn.Module | Iterable[nn.Parameter],
    *,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Replace every gradient by its mean over the ranks; a collective, after backward.

    A parameter without a gradient on this rank counts as zero if any rank has one, and stays
    without if none has. Gradients travel in one flat tensor per dtype and device. Unlike
    DistributedDataParallel nothing overlaps with backward.

    Args:
        module: plain, or its parameters; the same on every rank.
        process_group: the ranks; None means the default group.

    Raises:
        RuntimeError: on every rank: the parameters differ between ranks; a gradient is sparse; a
            rank has gradients but none from a backward since the last call, so that it would be
            averaged twice. On the ranks concerned: the module is, or contains, a
            DistributedDataParallel, which averages already.
    """
    group = member_group(process_group, "sync_gradients")
    if isinstance(module, nn.Module):
        require_plain(module, "sync_gradients")
        module = module.parameters()
    parameters = list(module)
    everyone = gather_objects(_holding(parameters), group)
    _require_agreement(everyone)
    wanted = [any(column) for column in zip(*(rank.present for rank in everyone), strict=True)]
    chosen = [parameter for parameter, want in zip(parameters, wanted, strict=True) if want]
    gradients = [_gradient(parameter) for parameter in chosen]
    average(gradients, group)
    for gradient in gradients:
        setattr(gradient, _SYNCED, gradient._version)


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The parameter's gradient, zero if it had none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _holding(parameters: list[nn.Parameter]) -> _Holding:
    layout = repr([(tuple(p.shape), p.dtype) for p in parameters])
    gradients = [p.grad for p in parameters if p.grad is not None]
    objection = None
    if any(gradient.layout is not torch.strided for gradient in gradients):
        objection = "has a sparse gradient; build its embedding with sparse=False"
    elif gradients and all(getattr(g, _SYNCED, None) == g._version for g in gradients):
        objection = "ran no backward since its gradients were averaged; average them once a step"
    return _Holding(
        layout=hashlib.blake2b(layout.encode(), digest_size=8).hexdigest(),
        present=tuple(parameter.grad is not None for parameter in parameters),
        objection=objection,
    )


def _require_agreement(everyone: list[_Holding]) -> None:
    first = everyone[0]
    apart = [rank for rank, holding in enumerate(everyone) if holding.layout != first.layout]
    if apart:
        raise RuntimeError(
            f"sync_gradients: {name_ranks(apart)} passed other parameters than rank 0 "
            f"({len(everyone[apart[0]].present)} and {len(first.present)} of them, or another "
            "order, shape or dtype); pass the same on every rank"
        )
    for rank, holding in enumerate(everyone):
        if holding.objection:
            raise RuntimeError(f"sync_gradients: rank {rank} {holding.objection}")
