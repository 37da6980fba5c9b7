"""A small sweep whose numbers are fixed, which the golden tables and the charts are made of; and
subjects of reports by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpbench.analysis.subject import Subject, of_folder
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment, capture
from dpbench.records.trial import Status, TrialRecord
from dpbench.store import StoredCollectives, StoredSweep
from tests.analysis.builders import PASSED, WRONG, rank, record, run, trial, window
from tests.builders import sweep_spec

STEP_SECONDS = {"dp": 0.0031, "ddp": 0.0030, "torch-ddp": 0.0036, "single": 0.0, "independent": 0.0}
BACKENDS = {"dp": "threads", "ddp": "gloo", "torch-ddp": "gloo"}


def sample_records(
    group_sizes: tuple[int, ...] = (1, 2),
    batch_sizes: tuple[int, ...] = (32, 128),
    repetitions: int = 3,
    timed_steps: int = 50,
) -> list[TrialRecord]:
    """Completed trials of five implementations, a skipped, a failed and a wrong one."""
    records = [
        _completed(name, group_size, batch_size, repetition, timed_steps)
        for repetition in range(repetitions)
        for name in STEP_SECONDS
        for group_size in group_sizes
        for batch_size in batch_sizes
        if name != "single" or group_size == 1
    ]
    records += [
        record(
            trial("ddp", "nccl", n, batch_sizes[0], timed_steps=timed_steps),
            status=Status.SKIPPED,
            reason="nccl needs a CUDA device a rank; none is visible",
        )
        for n in group_sizes
    ]
    records.append(
        run(
            trial("torch-dp", "threads", 1, batch_sizes[0], timed_steps=timed_steps),
            1000.0,
            losses=[2.0 - 0.01 * step for step in range(timed_steps)],
            status=Status.WRONG_GRADIENTS,
            verification=WRONG,
        )
    )
    failed = trial("ddp", "gloo", group_sizes[-1], batch_sizes[-1], timed_steps=timed_steps)
    index = next(i for i, r in enumerate(records) if r.trial == failed)
    records[index] = record(
        failed, status=Status.FAILED, reason="rank 1 ended with signal 9\nlast | words"
    )
    return records


def _completed(
    name: str, group_size: int, batch_size: int, repetition: int, timed_steps: int
) -> TrialRecord:
    drift = 1 + 0.01 * math.sin(7 * repetition + group_size + len(name))
    alone = 0.008 + 0.0002 * batch_size
    together = alone + STEP_SECONDS[name] * math.log2(group_size)
    spec = trial(
        name,
        BACKENDS.get(name, "none"),
        group_size,
        batch_size,
        repetition=repetition,
        timed_steps=timed_steps,
    )
    samples = batch_size * timed_steps
    losses = [2.3 * (0.985 + 1e-5 * repetition) ** i for i in range(timed_steps)]
    ranks = [
        rank(
            number,
            window(_steps(together * drift, timed_steps, number), samples, losses),
            without_sync=window(_steps(alone, timed_steps, number + repetition), samples)
            if name in BACKENDS
            else None,
            peak_host_memory_bytes=310_000_000 + 1_000_000 * group_size,
        )
        for number in range(group_size)
    ]
    return record(spec, ranks, verification=PASSED)


def _steps(mean_seconds: float, count: int, phase: int) -> list[float]:
    return [mean_seconds * (1 + 0.03 * math.sin(3 * i + phase)) for i in range(count)]


def stored(
    records: Sequence[TrialRecord],
    *,
    name: str = "demo",
    command: Sequence[str] = ("sweep",),
    environments: dict[str, Environment] | None = None,
    **changes: Any,
) -> StoredSweep:
    """A sweep as if it were read from the folder `name`; `changes` are of its specification."""
    return StoredSweep(
        folder=Path(name),
        spec=sweep_spec(**changes),
        command=tuple(command),
        environments={"e0": capture()} if environments is None else environments,
        records=tuple(records),
        warnings=(),
    )


def subject(records: Sequence[TrialRecord], **changes: Any) -> Subject:
    """The same, analyzed, as if its specification had asked for no other trials."""
    return replace(of_folder(stored(records, **changes)), unfinished=())


def stored_collectives(
    records: Sequence[CollectiveRecord], name: str = "c", warnings: tuple[str, ...] = ()
) -> StoredCollectives:
    """Collectives as if they were read from the folder `name`."""
    return StoredCollectives(
        folder=Path(name),
        command=("comm",),
        environments={},
        records=tuple(records),
        warnings=warnings,
    )


SPEEDS = {("ddp", 1): 100.0, ("ddp", 2): 190.0, ("torch-ddp", 1): 98.0, ("torch-ddp", 2): 170.0}


def measured(spread: float = 0.001, **changes: object) -> Subject:
    """Two implementations at group sizes 1 and 2, in three repetitions."""
    return subject(
        [
            run(trial(name, group_size=size, repetition=number), speed * (1 + spread * number))
            for (name, size), speed in SPEEDS.items()
            for number in range(3)
        ],
        **changes,
    )
