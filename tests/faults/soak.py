"""Many trials in a row: nothing of what the launching process holds may grow with them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

from dpbench.records import Status
from tests.faults.ranks import faulty, launcher
from tests.faults.scenario import Scenario, Try, expect

SETTLED = 30
"""Trials until caches and pools have the size that they keep."""
TOLERATED_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds; memory apart, the numbers must not grow at all."""

    descriptors: int
    threads: int
    processes: int
    shared_segments: int


def soak(tries: int) -> Iterator[Try]:
    with launcher() as (start, _):
        for number in range(SETTLED):
            start.run(faulty("Healthy", number), 60.0)
        before, memory = _held(), _memory_bytes()
        for number in range(tries):
            outcome = start.run(faulty("Healthy", number), 60.0)
            now = _held()
            yield Try(
                expect(
                    completed=outcome.status is Status.COMPLETED,
                    **{
                        f"nothing held more: {before} -> {now}": all(
                            a <= b for a, b in zip(astuple(now), astuple(before), strict=True)
                        )
                    },
                    **{
                        f"memory within 8 MiB of {memory}: {_memory_bytes()}": _memory_bytes()
                        <= memory + TOLERATED_BYTES
                    },
                )
            )


def _held() -> Held:
    this = psutil.Process()
    return Held(
        descriptors=this.num_fds(),
        threads=this.num_threads(),
        processes=len(this.children(recursive=True)),
        shared_segments=len(list(Path("/dev/shm").iterdir())),
    )


def _memory_bytes() -> int:
    """Resident memory of this process and its fork server."""
    gc.collect()
    this = psutil.Process()
    return sum(process.memory_info().rss for process in (this, *this.children()))


SCENARIOS = (
    Scenario(
        name="trials in a row",
        promise="no growth of memory, descriptors, threads, processes, shared segments",
        tries=300,
        run=soak,
    ),
)
