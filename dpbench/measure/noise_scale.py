"""Squared norms of gradients, before and after averaging them over ranks, at fixed parameters.

`analysis.losses.noise_scale` estimates the gradient noise scale from them. The model is called with
copies of its parameters and buffers, so no implementation's hook runs, and its gradients, running
statistics and the random state stay unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from dpbench.data.batch import Samples, call
from dpbench.measure.feed import Feed
from dpbench.measure.rank_group import RankGroup
from dpbench.records.trial import GradientNorms

Loss = Callable[[Any, Samples], torch.Tensor]


def measure_gradient_norms(
    module: torch.nn.Module,
    loss: Loss,
    feed: Feed,
    batches: Sequence[torch.Tensor],
    ranks: RankGroup,
) -> GradientNorms | None:
    """The norms for each of `batches`: this rank's sample indices of one global batch, int64 (n,).

    All ranks call it, with the plain module and its mean loss. The parameters are those of rank 0,
    as ranks that do not synchronize have drifted apart. Returns None without other ranks.
    """
    if ranks.control is None or ranks.size == 1:
        return None
    local_samples = batches[0].numel()
    global_samples = _sum(torch.tensor(local_samples), ranks.control).item()
    state = {name: _of_rank_zero(tensor, ranks.control) for name, tensor in _state(module).items()}
    trained = [tensor for tensor in state.values() if tensor.requires_grad]
    local_squared, global_squared = [], []

    def with_state(*args: object, **kwargs: object) -> Any:
        return torch.func.functional_call(module, state, args, kwargs)

    with torch.random.fork_rng(sorted({t.device for t in trained if t.is_cuda}, key=str)):
        for indices in batches:
            inputs, targets = feed.take(indices)
            mean_loss = loss(call(with_state, inputs), targets)
            gradients = torch.autograd.grad(mean_loss, trained, materialize_grads=True)
            local = torch.cat([gradient.to_dense().flatten() for gradient in gradients])
            share = local.to("cpu", copy=True).mul_(local_samples / global_samples)
            local_squared.append(_squared_norm(local))
            global_squared.append(_squared_norm(_sum(share, ranks.control)))
    return GradientNorms(
        local_squared=tuple(local_squared),
        global_squared=tuple(global_squared),
        local_samples=local_samples,
        global_samples=int(global_samples),
    )


def _state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _of_rank_zero(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """A copy of rank 0's tensor, as a leaf on this rank's device."""
    copy = tensor.detach().to("cpu", copy=True).contiguous()
    dist.broadcast(copy, src=0, group=group)
    return copy.to(tensor.device).requires_grad_(tensor.requires_grad)


def _sum(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Sum the tensor over ranks, in place."""
    dist.all_reduce(tensor, dist.ReduceOp.SUM, group)
    return tensor


def _squared_norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2
