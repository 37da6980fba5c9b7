"""What accumulating gradients saves across a link of 200 Mbit/s: two hosts, a replica on each.

With four micro-steps in a window the same gradients travel for four times the samples, so the
exposed communication of a sample is expected to fall to a quarter, or below it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from dpbench import store
from dpbench.records.trial import Status, TrialRecord
from tests.benchmarks.figure import Figure, Ratio
from tests.multi_node.commands import statuses, sweeping
from tests.multi_node.hosts import two_hosts, unusable_reason

BITS_PER_SECOND = 200e6
ACCUMULATE, REPETITIONS = 4, 4
LEAST_FALL = 3.0
SWEEP = (
    *("--arch", "mlp", "--data", "synthetic", "--implementations", "ddp", "--backends", "gloo"),
    *("--gpus", "1", "--group-sizes", "2", "--batch-sizes", "32", "--threads", "1"),
    *("--warmup", "3", "--steps", "15", "--repetitions", "1", "--phases", "0", "--no-charts"),
    *("--gradient-steps", "0", "--quiet"),
)
NAME = f"exposed communication of a sample, 200 Mbit/s: --accumulate 1 ÷ {ACCUMULATE}"
TARGET = f"at least {LEAST_FALL:g}"


def run() -> Iterator[Figure]:
    if (reason := unusable_reason()) is not None:
        yield Figure(name=NAME, value=reason, target=TARGET, met=False)
        return
    exposed: dict[int, list[float]] = {1: [], ACCUMULATE: []}
    for number in range(REPETITIONS):
        sides = (1, ACCUMULATE) if number % 2 == 0 else (ACCUMULATE, 1)
        for accumulate in sides:
            exposed[accumulate].append(_exposed_seconds_per_sample(accumulate))
    fall = Ratio.of(exposed[1], exposed[ACCUMULATE])
    yield Figure(name=NAME, value=str(fall), target=TARGET, met=fall.value >= LEAST_FALL)


def _exposed_seconds_per_sample(accumulate: int) -> float:
    """Of the slowest rank: steps with synchronization less those without, ÷ their samples."""
    with (
        two_hosts(bits_per_second=BITS_PER_SECOND) as hosts,
        tempfile.TemporaryDirectory(prefix="dpbench-") as name,
    ):
        folder = Path(name)
        words = (*SWEEP, "--accumulate", str(accumulate), "--name", "s")
        with sweeping(hosts, *words, folder=folder) as commands:
            assert statuses(commands) == [0, 0]
        records = store.load(folder / "s").records
    [record] = [r for r in records if r.trial.group_size == 2 and r.trial.implementation == "ddp"]
    assert record.status is Status.COMPLETED
    return max(_exposed_seconds(record)) / record.trial.effective_batch_size


def _exposed_seconds(record: TrialRecord) -> Iterator[float]:
    for rank in record.ranks:
        assert rank.without_sync is not None
        yield mean(rank.timed.step_seconds) - mean(rank.without_sync.step_seconds)
