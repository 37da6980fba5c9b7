"""Many trials in a row: nothing of what the launching process holds may grow with them."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

from dpbench.records.trial import Status
from tests.faults.ranks import faulty, launcher
from tests.faults.scenario import Scenario, Try, expect

SETTLED = 30
"""Trials until caches and pools have the size that they keep."""
TOLERATED_BYTES = 8 * 2**20
SETTLE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds; memory apart, the numbers must not grow at all."""

    descriptors: int
    threads: int
    processes: int

    def at_most(self, other: Held) -> bool:
        return all(a <= b for a, b in zip(astuple(self), astuple(other), strict=True))


def soak(tries: int) -> Iterator[Try]:
    with launcher() as (start, _):
        for number in range(SETTLED):
            start.run(faulty("Healthy", number), 60.0)
        before, memory = _held(), _memory_bytes()
        segments = _shared_segments()
        for number in range(tries):
            outcome = start.run(faulty("Healthy", number), 60.0)
            now = _settled(before)
            more = _shared_segments() - segments
            yield Try(
                expect(
                    completed=outcome.status is Status.COMPLETED,
                    **{f"nothing held more: {before} -> {now}": now.at_most(before)},
                    **{f"no shared segment left: {sorted(more)}": not more or _vanish(more)},
                    **{
                        f"memory within 8 MiB of {memory}: {_memory_bytes()}": _memory_bytes()
                        <= memory + TOLERATED_BYTES
                    },
                )
            )


def _settled(before: Held) -> Held:
    """What is held when threads that are just ending have ended."""
    now = _held()
    deadline = time.monotonic() + SETTLE_SECONDS
    while not now.at_most(before) and time.monotonic() < deadline:
        time.sleep(0.01)
        now = _held()
    return now


def _shared_segments() -> frozenset[str]:
    return frozenset(path.name for path in Path("/dev/shm").iterdir())


def _vanish(names: frozenset[str]) -> bool:
    """Those of other programs, and semaphores that are just being made, do not stay."""
    time.sleep(SETTLE_SECONDS)
    return not names & _shared_segments()


def _held() -> Held:
    this = psutil.Process()
    return Held(
        descriptors=this.num_fds(),
        threads=this.num_threads(),
        processes=len(this.children(recursive=True)),
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
