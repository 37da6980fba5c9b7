"""`ddp-sharded`: dpbench's DistributedDataParallel with a ShardedOptimizer."""

from __future__ import annotations

import torch

from dpbench import parallel
from dpbench.measure.implementations.ddp import OurDistributedDataParallel
from dpbench.measure.implementations.model import device_ids
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 25,
    "description": "dpbench's ShardedOptimizer: each rank steps its share of parameters (ZeRO-1)",
    "ours": True,
    "shards": "optimizer",
    "settings": ("bucket_cap_mb",),
}


class ShardedDdp(OurDistributedDataParallel):
    """dpbench.DistributedDataParallel, where backward averages each rank's share for it alone.

    An average in shares and a gathering of them move what one all-reduce moves.
    """

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        self._optimizer = parallel.ShardedOptimizer(self.wrapped, plain)
        return self._optimizer

    def clip_gradients(self, max_norm: float) -> torch.Tensor:
        return self._optimizer.clip_grad_norm_(max_norm)

    def full_gradients(self) -> list[torch.Tensor | None]:
        averages = self._optimizer.gradients()
        return [averages.get(parameter) for parameter in self.wrapped.parameters()]


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> ShardedDdp:
    """Wrap `module`; its optimizer is sharded when it is made."""
    wrapped = parallel.DistributedDataParallel(
        module,
        device_ids(spec, rank),
        bucket_cap_mb=spec.bucket_cap_mb,
        gradient_as_bucket_view=True,
    )
    return ShardedDdp(wrapped)
