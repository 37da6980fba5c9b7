"""torch's communication hooks, which compress gradients and lose precision."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from dpbench.specs import ParallelSpec

POWER_SGD_FIRST_STEP = 3
"""First step that compresses; earlier reductions are exact. Torch's default is 1000, which a trial
would not reach; 2 is the least that it allows, and a static graph changes its buckets until then.
"""


def register_hook(wrapped: Any, spec: ParallelSpec) -> None:
    """Register the hook of `spec` for every bucket of a DistributedDataParallel, torch's or
    dpbench's; before training, on all ranks.

    Raises TypeError if torch cannot: its own class reduces bfloat16 only with nccl.
    """
    if spec.comm_hook == "none":
        return
    if spec.comm_hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

        state = PowerSGDState(dist.group.WORLD, start_powerSGD_iter=POWER_SGD_FIRST_STEP)
        wrapped.register_comm_hook(state, power_sgd)
    else:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        wrapped.register_comm_hook(None, bf16_compress_hook)


def power_sgd(state, bucket):  # type: ignore[no-untyped-def] # torch reads annotations as types
    """Torch's PowerSGD hook, one bucket after the other.

    Torch's hook starts its later collectives in callbacks of the first. With gloo the callbacks run
    in threads, in an order that differs between ranks, so two buckets in flight at once would be
    paired wrongly: a hang, or an abort. With nccl only the stream waits, not the host.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

    future = powerSGD_hook(state, bucket)
    future.wait()
    return future
