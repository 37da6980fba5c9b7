"""A small sweep whose numbers are fixed, which the golden tables and the charts are made of; and
analyses of reports by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dpbench.analysis.analyze import Analysis, analyze
from dpbench.analysis.collectives import Collectives, collective_rows
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import MemoryPeaks, Status, TrialRecord
from tests.analysis.builders import (
    BACKENDS,
    PASSED,
    WRONG,
    rank,
    record,
    run,
    stored,
    trial,
    window,
)
from tests.builders import command

COMMUNICATION_SECONDS = {"dp": 0.0031, "ddp": 0.0030, "torch-ddp": 0.0036}
"""Of two replicas in a step."""
STEPS = 50


def sample_records(
    group_sizes: tuple[int, ...] = (1, 2), repetitions: int = 3
) -> list[TrialRecord]:
    """Completed trials of five implementations, a skipped, a failed and a wrong one."""
    records = [
        _completed(name, group_size, batch_size, repetition)
        for repetition in range(repetitions)
        for name in (*COMMUNICATION_SECONDS, "single", "independent")
        for group_size in group_sizes
        for batch_size in (32, 128)
        if name != "single" or group_size == 1
    ]
    reason = "nccl needs a CUDA device a rank; none is visible"
    for size in group_sizes:
        absent = trial("ddp", "nccl", size, steps=STEPS)
        records.append(record(absent, status=Status.SKIPPED, reason=reason))
    losses = [2.0 - 0.01 * step for step in range(STEPS)]
    wrong = trial("torch-dp", "threads", steps=STEPS)
    records.append(run(wrong, 1000.0, losses=losses, verification=WRONG))
    failed = trial("ddp", "gloo", group_sizes[-1], 128, steps=STEPS)
    reason = "rank 1 ended with signal 9\nlast | words"
    return [
        record(failed, reason=reason) if one.configuration == failed and not one.repetition else one
        for one in records
    ]


def _completed(name: str, group_size: int, batch_size: int, repetition: int) -> TrialRecord:
    drift = 1 + 0.01 * math.sin(7 * repetition + group_size + len(name))
    alone = 0.008 + 0.0002 * batch_size
    communication = COMMUNICATION_SECONDS.get(name, 0.0)
    together = (alone + communication * math.log2(group_size)) * drift
    spec = trial(name, BACKENDS.get(name, "gloo"), group_size, batch_size, steps=STEPS)
    samples = batch_size * STEPS
    losses = [2.3 * (0.985 + 1e-5 * repetition) ** i for i in range(STEPS)]
    ranks = [
        rank(
            number,
            window(_steps(together, number), samples, losses),
            unsynced=window(_steps(alone, number + repetition), samples) if communication else None,
            peaks=MemoryPeaks(host_bytes=310_000_000 + 1_000_000 * group_size),
        )
        for number in range(group_size)
    ]
    return record(spec, ranks, repetition=repetition, verification=PASSED)


def _steps(mean_seconds: float, phase: int) -> list[float]:
    return [mean_seconds * (1 + 0.03 * math.sin(3 * i + phase)) for i in range(STEPS)]


def analysis(records: Sequence[TrialRecord], **changes: Any) -> Analysis:
    """The same, analyzed, as if its specification had asked for no other trials."""
    found = analyze(stored(records, **changes))
    return replace(found, folder_warnings=found.folder_warnings[1:])


def stored_collectives(
    records: Sequence[CollectiveRecord], name: str = "c", warnings: tuple[str, ...] = ()
) -> Collectives:
    """Collectives as if they were read from the folder `name`."""
    return Collectives(
        name=name,
        rows=collective_rows(records),
        command=command("comm"),
        records=tuple(records),
        environments={},
        warnings=warnings,
    )
