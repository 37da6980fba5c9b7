"""Local SGD: each rank trains alone, and every N steps the ranks average their parameters."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.agreement import describe, require_agreement
from dpbench.parallel.averaging import average, require_plain
from dpbench.parallel.ddp.broadcast import broadcast_coalesced
from dpbench.parallel.groups import member_group


class LocalSGD:
    """Averages the parameters of a plain module over the ranks, every few optimizer steps.

    It communicates `every` times less often than DistributedDataParallel. Only with `every=1` and
    SGD without momentum is it the same optimisation, as the mean of the ranks' steps is then the
    step of the mean gradient; else the ranks drift apart between two averages. Optimizer state
    (momentum, Adam's moments) stays local.

        local = LocalSGD(model, every=4)
        for batch in batches:
            ...; optimizer.step(); local.step()
        local.synchronize()

    Stich, "Local SGD Converges Fast and Communicates Little" (2018), arXiv:1805.09767.

    Args:
        module: not wrapped; the same on every rank but for its values, which are taken from rank
            0 at construction, a collective.
        every: optimizer steps between two averages.
        process_group: the ranks; None means the default group.

    Attributes:
        steps: optimizer steps since construction.
        averaged_bytes: bytes of parameters and buffers given to collectives since construction.
        averages: how often the ranks have averaged since construction.

    Raises:
        ValueError: `every` is not a whole number of at least 1.
        RuntimeError: there is no process group, or the module differs between the ranks, or it
            is wrapped already.
    """

    def __init__(
        self, module: nn.Module, every: int, *, process_group: dist.ProcessGroup | None = None
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"LocalSGD: got every={every!r}, expected a whole number above 0")
        require_plain(module, "LocalSGD")
        self.module = module
        self.every = every
        self.process_group = member_group(process_group, "LocalSGD")
        self.steps = 0
        self.averages = 0
        self.averaged_bytes = 0
        self._averaged_at = 0
        mine = describe(module.named_parameters(), module.named_buffers(), {"every": every})
        require_agreement("LocalSGD", mine, self.process_group)
        broadcast_coalesced(self._tensors(), self.process_group)

    def step(self) -> None:
        """Call after each optimizer step; every N-th time a collective."""
        self.steps += 1
        if self.steps % self.every == 0:
            self.synchronize()

    def synchronize(self) -> None:
        """Average now, unless nothing was trained since the last time; a collective.

        All ranks hold the same parameters and buffers afterwards, bit for bit. Integer buffers
        cannot be averaged and are taken from rank 0.
        """
        if self._averaged_at == self.steps:
            return
        self._averaged_at = self.steps
        self.averages += 1
        tensors = self._tensors()
        averaged = [t for t in tensors if t.is_floating_point() or t.is_complex()]
        others = [t for t in tensors if not (t.is_floating_point() or t.is_complex())]
        self.averaged_bytes += average(averaged, self.process_group)
        if others:
            self.averaged_bytes += broadcast_coalesced(others, self.process_group)

    def _tensors(self) -> list[Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]
