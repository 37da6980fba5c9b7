"""`dp`: dpbench's DataParallel, which drives all replicas from one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from dpbench import parallel
from dpbench.measure.implementations.model import (
    CommunicationTotals,
    ParallelModel,
    ReplicaSeconds,
    no_seconds,
)
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 10,
    "description": "dpbench.DataParallel: one process, one thread per replica",
    "ours": True,
    "can_run_unsynced": True,
    "backend": "threads",
}


class OurDataParallel(ParallelModel):
    """dpbench.DataParallel: each backward sums over the replicas, accumulated or not."""

    module: parallel.DataParallel

    def unsynced_for_timing(self) -> AbstractContextManager[None]:
        return self.module.without_reduction()

    def communication(self) -> CommunicationTotals | None:
        return CommunicationTotals(
            self.module.meter.reduced_bytes, self.module.meter.summed_backwards
        )

    @contextmanager
    def replica_seconds(self) -> Iterator[ReplicaSeconds]:
        if len(self.module.devices) == 1:  # a plain call of the module
            yield no_seconds
            return
        meter = self.module.meter
        meter.waits = True
        try:
            yield lambda: dict(meter.seconds)
        finally:
            meter.waits = False


def wrap(module: torch.nn.Module, settings: ParallelSpec, rank: int) -> OurDataParallel:
    """Put all replicas into this process."""
    threads = settings.threads_per_replica
    return OurDataParallel(
        parallel.DataParallel(module, settings.devices, threads_per_replica=threads)
    )
