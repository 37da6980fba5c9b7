"""Torch's communication hooks: gradients that travel smaller than they are, and lose by it."""

from __future__ import annotations

from typing import Any, Protocol

import torch.distributed as dist

from dpbench.measure.implementations.model import Settings

POWER_SGD_RANK = 1
"""Of the two factors that a matrix of gradients travels as: torch's default."""
POWER_SGD_FIRST_STEP = 3
"""Reductions before that are exact. Torch's default is 1000, which a trial would not reach; 2 is
the least that it allows, and a static graph changes its buckets until then."""


class HasHooks(Protocol):
    """A DistributedDataParallel, torch's or ours."""

    def register_comm_hook(self, state: object, hook: Any) -> None: ...


def register_hook(wrapped: HasHooks, settings: Settings) -> None:
    """Has the hook that `settings` names communicate each bucket; before training, on all ranks.

    Raises TypeError where torch cannot: its own class reduces bfloat16 with nccl only.
    """
    if settings.comm_hook == "bf16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        wrapped.register_comm_hook(None, bf16_compress_hook)
    elif settings.comm_hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

        state = PowerSGDState(
            dist.group.WORLD,
            matrix_approximation_rank=POWER_SGD_RANK,
            start_powerSGD_iter=POWER_SGD_FIRST_STEP,
        )
        wrapped.register_comm_hook(state, power_sgd)


def power_sgd(state, bucket):  # type: ignore[no-untyped-def] # torch reads annotations as types
    """Torch's hook, one bucket after the other.

    It starts its later collectives in callbacks of the first. With gloo they run in threads, in
    an order of each rank's own, so that two buckets under way at once met in the wrong pairs: a
    hang, or an abort. With nccl the wait is one of the stream, not of the host.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

    future = powerSGD_hook(state, bucket)
    future.wait()
    return future
