"""`dp`: dpbench's DataParallel, which drives all replicas from one process."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from dpbench import parallel
from dpbench.measure.implementations.model import ParallelModel
from dpbench.parallel.phase_clock import PhaseClock
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 10,
    "description": "dpbench.DataParallel: one process, one thread per replica",
    "ours": True,
    "can_run_unsynced": True,
    "exchange": "threads",
}


class OurDataParallel(ParallelModel):
    """dpbench.DataParallel: each backward sums over the replicas, accumulated or not."""

    wrapped: parallel.DataParallel

    def unsynced(self) -> AbstractContextManager[None]:
        return self.wrapped.unsynced()

    def reduced_bytes(self) -> int:
        return self.wrapped.reduced_bytes


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> OurDataParallel:
    """Put all replicas into this process."""
    wrapped = parallel.DataParallel(module, spec.devices)
    # One replica is a plain call of the module, without phases.
    return OurDataParallel(wrapped, wrapped.clock if spec.group_size > 1 else PhaseClock())
