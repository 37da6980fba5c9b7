"""Averaging gradients by hand, for a module that nothing wraps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.agreement import Entry, describe_tensor, require_agreement
from dpbench.parallel.averaging import average, require_plain
from dpbench.parallel.groups import carrier, member_group

_SYNCED = "_dpbench_synced_version"
"""Set on a gradient: its version counter when it was averaged. A backward counts further."""


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
    objection = _objection([p.grad for p in parameters if p.grad is not None])
    require_agreement(
        "sync_gradients",
        [Entry("parameter", str(n), describe_tensor(p)) for n, p in enumerate(parameters)],
        group,
        objection=objection and f"rank {dist.get_rank(group)} {objection}",
    )
    chosen = _with_gradient_somewhere(parameters, group)
    gradients = [_gradient(parameter) for parameter in chosen]
    average(gradients, group)
    for gradient in gradients:
        setattr(gradient, _SYNCED, gradient._version)


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The parameter's gradient, zero if it had none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _with_gradient_somewhere(
    parameters: Sequence[nn.Parameter], group: dist.ProcessGroup
) -> list[nn.Parameter]:
    """Those that have a gradient on at least one rank; a collective."""
    present = [parameter.grad is not None for parameter in parameters]
    flags = torch.tensor(present, dtype=torch.uint8, device=carrier(group))
    dist.all_reduce(flags, dist.ReduceOp.MAX, group)
    return list(compress(parameters, flags.tolist()))


def _objection(gradients: Sequence[Tensor]) -> str | None:
    """Why the gradients of this rank cannot be averaged; None if they can."""
    if any(gradient.layout is not torch.strided for gradient in gradients):
        return "has a sparse gradient; build its embedding with sparse=False"
    if gradients and all(getattr(g, _SYNCED, None) == g._version for g in gradients):
        return "ran no backward since its gradients were averaged; average them once a step"
    return None
