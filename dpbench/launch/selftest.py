"""The self-test of a backend: an all-reduce between two ranks, whose sum is checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
import torch.distributed as dist

from dpbench import units
from dpbench.launch.machine import Machine
from dpbench.launch.ranks import RanksFailed, run_ranks
from dpbench.rendezvous.process_group import process_group
from dpbench.temporary import temporary_folder

TIME_LIMIT_SECONDS = 20.0
ELEMENTS = 1024
ROUNDS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTest:
    """The result for one backend; `seconds` is the median all-reduce of 4 KiB."""

    backend: str
    passed: bool
    ranks: int
    seconds: float | None = None
    reason: str | None = None

    @property
    def text(self) -> str:
        """The result in words."""
        if not self.passed:
            return ("failed: " if self.ranks else "not usable: ") + (self.reason or "")
        took = units.seconds(self.seconds) if self.seconds is not None else "not timed"
        ranks = units.counted(self.ranks, "rank")
        return f"works: 4 KiB all-reduce between {ranks} in {took} (median)"


def self_test(backend: str, machine: Machine) -> SelfTest:
    """Run the all-reduce between two ranks (nccl on one GPU: a single rank)."""
    reason = machine.missing_reason(backend)
    if reason:
        return SelfTest(backend=backend, passed=False, ranks=0, reason=reason)
    count = min(2, machine.gpu_count) if backend == "nccl" else 2
    try:
        with temporary_folder() as scratch:
            work = partial(all_reduce_seconds, backend)
            seconds = run_ranks(work, count, scratch, TIME_LIMIT_SECONDS)
    except RanksFailed as failed:
        reason = failed.outcome.reason
        return SelfTest(backend=backend, passed=False, ranks=count, reason=reason)
    return SelfTest(backend=backend, passed=True, ranks=count, seconds=max(seconds))


def all_reduce_seconds(backend: str, rank: int) -> float:
    """The median seconds of one all-reduce; raises if a sum is wrong."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    with process_group(backend, device=device) as group:
        expected = torch.full((ELEMENTS,), float(sum(range(1, group.size + 1))), device=device)
        seconds = []
        for _ in range(ROUNDS):
            tensor = torch.full((ELEMENTS,), float(rank + 1), device=device)
            dist.barrier()
            start = perf_counter()
            dist.all_reduce(tensor)
            if not torch.equal(tensor, expected):  # also waits for the device
                got, wanted = tensor[0].item(), expected[0].item()
                raise RuntimeError(f"all-reduce gave {got}, expected {wanted}")
            seconds.append(perf_counter() - start)
    return sorted(seconds)[len(seconds) // 2]
