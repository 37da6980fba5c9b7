"""Records of whole small sweeps from the seconds of a step of every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpbench.records import TrialRecord
from tests.analysis.builders import PASSED, rank, record, trial, window

STEPS = 4


def steps_of(
    implementation: str,
    timed: Sequence[float],
    without_sync: Sequence[float] | None = None,
    *,
    backend: str | None = None,
    **changes: Any,
) -> TrialRecord:
    """A completed trial whose ranks took so many seconds for every step.

    One value a process; `group_size` says otherwise for one process of several replicas.
    """
    values = {"group_size": len(timed), "batch_size": 32, "timed_steps": STEPS, **changes}
    spec = trial(implementation, backend or BACKENDS.get(implementation, "gloo"), **values)
    ranks = [
        rank(
            number,
            window([seconds] * STEPS, spec.process_shard(number)[1] * STEPS, [1.0] * STEPS),
            without_sync=None
            if without_sync is None
            else window([without_sync[number]] * STEPS, 1),
        )
        for number, seconds in enumerate(timed)
    ]
    return record(spec, ranks, verification=PASSED)


BACKENDS = {"single": "none", "independent": "none", "dp": "threads", "torch-dp": "threads"}


def weak_sweep(repetition: int = 0, slower: float = 1.0) -> list[TrialRecord]:
    """Two ranks: contention 0.8, wrapper 12.5/13.5, balance 13.5/14, communication 0.7.

    `slower` multiplies every time of the pass.
    """
    ms = 1e-3 * slower
    at = {"repetition": repetition}
    return [
        steps_of("single", [10 * ms], **at),
        steps_of("independent", [12 * ms, 13 * ms], **at),
        steps_of("ddp", [11 * ms], [10.5 * ms], **at),
        steps_of("ddp", [20 * ms, 20 * ms], [13 * ms, 14 * ms], **at),
    ]
