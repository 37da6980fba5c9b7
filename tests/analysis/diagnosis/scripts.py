"""Records of a training script by hand."""

from __future__ import annotations

from typing import Any

from dpbench.records.trial import HostLoad, RankMeasurement, ScriptFacts, TrialRecord
from dpbench.specs import WorkloadSpec
from tests.analysis.builders import rank, record, trial, window

STEPS, SAMPLES = 4, 8
WORKLOAD = WorkloadSpec(architecture="train.py", dataset="", script=("train.py", "--lr", "1"))
FACTS: dict[str, Any] = {
    "steps": STEPS,
    "forwards": STEPS,
    "reducing_forwards": STEPS,
    "loader_workers": 0,
}


def script_sweep(
    repetition: int,
    *,
    as_is: float = 0.050,
    unsynced: float | None = 0.049,
    cached: float | None = 0.049,
    single: float | None = 0.048,
    threads: int = 1,
    sync_batch_norms: int = 0,
    group_class: str = "ProcessGroupNCCL",
    cores: int = 2,
    others: float = 0.0,
    devices: tuple[str, ...] = ("cpu", "cpu"),
    **facts: Any,
) -> list[TrialRecord]:
    """One repetition, from seconds of a step; the copies take as long as one rank alone. They
    differ by 1 % in every other repetition."""
    noise = 1.01 if repetition % 2 else 1.0

    def measured(number: int, seconds: float, **more: Any) -> RankMeasurement:
        return rank(number, window((noise * seconds,) * STEPS, STEPS * SAMPLES), **more)

    def row(
        implementation: str, size: int, ranks: list[RankMeasurement], **more: Any
    ) -> TrialRecord:
        spec = trial(
            implementation,
            "own" if implementation == "script" else "none",
            size,
            None,
            workload=WORKLOAD,
            devices=devices[:size],
        )
        load = HostLoad(cores=cores, during=others, stolen=0.0)
        return record(spec, ranks, item="samples", host_load=load, repetition=repetition, **more)

    windows = {
        name: None if seconds is None else window((seconds,) * STEPS, STEPS * SAMPLES)
        for name, seconds in (("unsynced", unsynced), ("cached", cached))
    }
    seen = {"threads": threads, "sync_batch_norms": sync_batch_norms, "group_class": group_class}
    together = [
        measured(number, as_is, script=ScriptFacts(**{**FACTS, **facts}), **windows)
        for number in range(2)
    ]
    alone = [] if single is None else [measured(0, single)]
    copies = [] if single is None else [measured(number, single) for number in range(2)]
    return [
        row("single", 1, alone),
        row("script", 2, together, **seen),
        row("independent", 2, copies),
    ]
