"""The self-test of a backend: an all-reduce between two ranks, whose sum is checked."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from dpbench import units
from dpbench.launch.collectives import HostCollectives
from dpbench.launch.machine import Machine
from dpbench.records.collectives import CollectiveSpec
from dpbench.records.trial import Status
from dpbench.specs.traits import BACKENDS
from dpbench.temporary import temporary_folder

TIME_LIMIT_SECONDS = 20.0


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
    """Measure the all-reduce between two ranks (on one GPU, with NCCL: a single rank)."""
    if reason := machine.missing_reason(backend):
        return SelfTest(backend=backend, passed=False, ranks=0, reason=reason)
    devices: tuple[str, ...] = ("cpu", "cpu")
    if BACKENDS[backend].cuda_only:
        devices = tuple(f"cuda:{gpu.index}" for gpu in machine.gpus[:2])
    spec = CollectiveSpec(
        collective="all_reduce",
        backend=backend,
        group_size=len(devices),
        devices=devices,
        sizes_bytes=(4096,),
        threads_per_replica=1,
    )
    with temporary_folder() as logs:
        outcome = HostCollectives(machine, logs).run(spec, TIME_LIMIT_SECONDS)
    return SelfTest(
        backend=backend,
        passed=outcome.status is Status.COMPLETED,
        ranks=len(devices),
        seconds=max((median(rank.timings[0].seconds) for rank in outcome.ranks), default=None),
        reason=outcome.reason,
    )
