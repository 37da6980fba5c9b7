"""The ranks of one run: their process group, and a barrier that is not part of what is measured.

Environment variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) come from the launcher.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from dpbench.specs import BACKENDS

COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""Longer than any trial: the time limit of the trial ends a hang, and names its cause."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The processes of one run; `control` is a CPU group beside the one that is measured."""

    size: int
    control: dist.ProcessGroup | None

    def barrier(self) -> None:
        """Returns when every rank has called it; never touches a device."""
        if self.control is not None:
            dist.barrier(self.control)

    def largest(self, value: float) -> float:
        """The largest `value` of all ranks."""
        if self.control is None:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, self.control)
        return float(tensor.item())


@contextmanager
def rank_group(backend: str, size: int) -> Iterator[RankGroup]:
    """Joins the process group of `size` ranks that the backend needs; leaves it at the end."""
    measured = BACKENDS[backend].process_group
    if size == 1 and not measured:
        yield RankGroup(size=1, control=None)
        return
    dist.init_process_group(backend if measured else "gloo", timeout=COLLECTIVE_TIMEOUT)
    try:
        if measured and backend != "gloo":
            control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        else:
            control = dist.group.WORLD
        yield RankGroup(size=size, control=control)
    finally:
        dist.destroy_process_group()
