"""The hook hierarchical against gloo: two hosts with several ranks each, joined by a slow link.

With g ranks on each of two hosts gloo's ring sends 2 (2g - 1)/2g of a bucket over the link, and the
hook sends it once: so 0.67 of gloo's bytes with two ranks on a host, and 0.57 with four.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from dpbench import store
from dpbench.records.trial import Status
from tests.benchmarks.figure import Figure, Ratio, alternating
from tests.multi_node.all_reduce_program import all_reduces
from tests.multi_node.commands import statuses, sweeping
from tests.multi_node.hosts import two_hosts, unusable_reason

FAST, SLOW = 1e9, 200e6
BUCKET_BYTES = 25_000_000
TIMES, PAIRS = {FAST: 10, SLOW: 3}, 4
MOST_SENT = 1.05
"""Times the tensor, with the headers of packets."""
SLACK = 1.15
"""Of the ratio of the bytes, for what is not the link's."""
STEPS = (
    *("--arch", "mlp", "--data", "synthetic", "--implementations", "ddp", "--gpus", "2"),
    *("--group-sizes", "4", "--batch-sizes", "8", "--threads", "1", "--warmup", "3"),
    *("--steps", "15", "--repetitions", "1", "--phases", "0", "--gradient-steps", "0"),
    *("--no-charts", "--quiet", "--name", "s"),
)
STEP_CASES = ((FAST, 0.9), (SLOW, 0.8))
"""Bits per second, and the most that a step may take of one without a hook: all four ranks compute
on the cores of one machine, which the faster link leaves less time for."""
STEP_PAIRS = 3


def run() -> Iterator[Figure]:
    if (reason := unusable_reason()) is not None:
        yield Figure(name="hierarchical across a link", value=reason, target="two hosts", met=False)
        return
    for rate, ranks in ((FAST, 2), (SLOW, 2), (SLOW, 4)):
        yield from _all_reduces(rate, ranks)
    for rate, most in STEP_CASES:
        yield _steps(rate, most)


def _all_reduces(rate: float, ranks: int) -> Iterator[Figure]:
    sent: list[float] = []

    def seconds(way: str) -> float:
        with two_hosts(bits_per_second=rate) as hosts:
            (crossings,) = all_reduces(
                hosts, way, ranks_per_host=ranks, nbytes=BUCKET_BYTES, times=TIMES[rate]
            )
        if way == "hierarchical":
            sent.extend(crossings.sent_shares)
        return crossings.seconds

    ours, theirs = alternating(lambda: seconds("hierarchical"), lambda: seconds("gloo"), PAIRS)
    where = f"{ranks} + {ranks} ranks, {rate / 1e6:.0f} Mbit/s"
    yield Figure(
        name=f"bytes that a host sends for an all-reduce of 25 MB ÷ 25 MB, hierarchical, {where}",
        value=f"{max(sent):.3f} at most",
        target=f"at most {MOST_SENT:g}",
        met=max(sent) <= MOST_SENT,
    )
    ratio, most = Ratio.of(ours, theirs), SLACK * _bytes_ratio(ranks)
    yield Figure(
        name=f"average of 25 MB, hierarchical ÷ gloo, {where}",
        value=str(ratio),
        target=f"at most {most:.2f}",
        met=ratio.value <= most,
    )


def _steps(rate: float, most: float) -> Figure:
    ours, theirs = alternating(
        lambda: _step_seconds(rate, "--comm-hook", "hierarchical"),
        lambda: _step_seconds(rate),
        STEP_PAIRS,
    )
    ratio = Ratio.of(ours, theirs)
    where = f"2 + 2 ranks, {rate / 1e6:.0f} Mbit/s"
    return Figure(
        name=f"step of ddp on gloo, mlp at batch 8: with hierarchical ÷ without, {where}",
        value=str(ratio),
        target=f"at most {most:.2f}",
        met=ratio.value <= most,
    )


def _step_seconds(rate: float, *words: str) -> float:
    with (
        two_hosts(bits_per_second=rate) as hosts,
        tempfile.TemporaryDirectory(prefix="dpbench-") as name,
    ):
        folder = Path(name)
        with sweeping(hosts, *STEPS, "--backends", "gloo", *words, folder=folder) as commands:
            assert statuses(commands) == [0, 0]
        records = store.load(folder / "s").records
    [record] = [r for r in records if r.trial.group_size == 4]
    assert record.status is Status.COMPLETED, record.reason
    return max(mean(rank.timed.step_seconds) for rank in record.ranks)


def _bytes_ratio(ranks: int) -> float:
    """Bytes of hierarchical ÷ those of gloo's ring."""
    size = 2 * ranks
    return 1 / (2 * (size - 1) / size)
