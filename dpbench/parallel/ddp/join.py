"""Ranks that have run out of data take part in the collectives of the others.

The protocol is torch.distributed.algorithms.join's, so that a wrapped module and torch's own
joinable optimizers can share one context. In each step of theirs, the ranks with data send

    notice          how many they are (torch's context)
    will it sync?   whether the backward of this step reduces
    build           the buckets, and once their order
    buffers         from the last rank that has data
    buckets         in their order
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, JoinHook

from dpbench.parallel.groups import max_over_ranks

if TYPE_CHECKING:
    from dpbench.parallel.ddp.distributed_data_parallel import DistributedDataParallel


def notify(ddp: DistributedDataParallel, *, syncs: bool) -> int | None:
    """Tell the ranks without data that this one continues, and what it needs from them.

    Returns:
        How many ranks have data; None if no join context is active in which the wrapper is the
        first joinable.
    """
    notice = Join.notify_join_context(ddp)
    if notice is None:
        return None
    (active,) = notice.get_future().wait()
    max_over_ranks(int(syncs), ddp.process_group, device=ddp.device)
    return int(active.item())


def last_rank(ddp: DistributedDataParallel, candidate: bool) -> int:
    """The last rank of the group among the candidates; a collective."""
    group = ddp.process_group
    return max_over_ranks(dist.get_rank(group) if candidate else -1, group, device=ddp.device)


class DdpJoinHook(JoinHook):
    """The callbacks that torch's Join context makes on a rank without data."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._without_gradient: list[nn.Parameter] | None = None

    def main_hook(self) -> None:
        """Take part in a step of another rank.

        This rank gets the average gradients too, for an optimizer that repeats the others' steps.
        """
        ddp = self._ddp
        if self._without_gradient is None:
            self._without_gradient = [p for p in ddp.module.parameters() if p.grad is None]
        syncs = max_over_ranks(0, ddp.process_group, device=ddp.device) == 1
        if syncs:
            ddp._reducer.ensure_buckets(reorder=ddp.training)
        ddp._send_buffers(has_data=False)
        if ddp.training:
            ddp.require_forward_param_sync = syncs
        if syncs:
            ddp._reducer.reduce_zeros()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Give all ranks the model of one that was last, when all are done."""
        ddp = self._ddp
        source = last_rank(ddp, is_last_joiner)
        ddp._make_equal(with_buffers=ddp.forward_sync_buffers, source=source)
        for parameter in self._without_gradient or ():
            parameter.grad = None
        ddp._may_join = False  # torch leaves the context on, at two collectives a step
