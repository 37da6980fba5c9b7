"""Records by hand: a few numbers in, a whole TrialRecord out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dpbench.analysis.change import ALPHA
from dpbench.analysis.comparisons.comparison import Comparison, compare_sides
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import judge
from dpbench.folders import Sweep
from dpbench.records.environment import Accelerator, Environment, capture
from dpbench.records.trial import (
    MemoryPeaks,
    RankMeasurement,
    Status,
    TrialFacts,
    TrialRecord,
    Verification,
    Window,
)
from dpbench.specs import Configuration
from tests.builders import HERE, command, configuration, sweep_spec

PASSED = Verification(passed=True, max_relative_error=1e-12, tolerance=1e-6, tensors_compared=8)
WRONG = Verification(
    passed=False,
    max_relative_error=0.25,
    tolerance=1e-6,
    tensors_compared=8,
    worst_parameter="conv1.weight",
)
STEPS = 4
BACKENDS = {"single": "none", "independent": "none", "dp": "threads", "torch-dp": "threads"}
QUIET = (1000.0, 1010.0, 990.0, 1005.0, 995.0)
NOISY = (1000.0, 1300.0, 700.0, 1200.0, 800.0)
H100 = "NVIDIA H100 80GB HBM3"


def machine(*gpus: str) -> Environment:
    """A host with these GPUs."""
    found = (Accelerator(index=i, name=name, memory_bytes=1) for i, name in enumerate(gpus))
    return replace(HERE, hostname="host", cpu="Some CPU", versions={}, accelerators=tuple(found))


def trial(
    implementation: str = "ddp",
    backend: str = "gloo",
    group_size: int = 1,
    batch_size: int | None = 32,
    **changes: Any,
) -> Configuration:
    values = {"warmup": 2, "steps": STEPS, **changes}
    values |= {"group_size": group_size, "batch_size": batch_size}
    return configuration(implementation=implementation, backend=backend, **values)


def varied(spec: Configuration, **settings: Any) -> Configuration:
    """The configuration with other values of these settings."""
    values = {field.name: getattr(spec, field.name) for field in fields(Configuration)}
    workload = values.pop("workload")
    return Configuration.of(workload, values | settings)


def window(step_seconds: Sequence[float], samples: int, losses: Sequence[float] = ()) -> Window:
    return Window(
        seconds=sum(step_seconds),
        step_seconds=tuple(step_seconds),
        samples=samples,
        losses=tuple(losses),
    )


def rank(
    number: int,
    timed: Window,
    unsynced: Window | None = None,
    cached: Window | None = None,
    **changes: Any,
) -> RankMeasurement:
    windows = {"timed": timed, "unsynced": unsynced, "cached": cached}
    values: dict[str, Any] = {
        "rank": number,
        "pid": 100 + number,
        "device": "cpu",
        "windows": {mode: steps for mode, steps in windows.items() if steps is not None},
        "setup_seconds": 0.1,
        "peaks": MemoryPeaks(host_bytes=300 * 2**20),
    }
    return RankMeasurement(**{**values, **changes})


def record(
    spec: Configuration, ranks: Sequence[RankMeasurement] = (), **changes: Any
) -> TrialRecord:
    """`changes` are fields of the record, of its facts, or of all its ranks."""
    values: dict[str, Any] = {
        "configuration": spec,
        "environment_ids": ("e0",),
        "status": Status.COMPLETED if ranks else Status.FAILED,
        "started_utc": "2025-01-01T00:00:00.000Z",
        "duration_seconds": 1.0,
    }
    if changes.get("verification") is WRONG:
        values["status"] = Status.WRONG_GRADIENTS
    changes = {"item": "images", **changes}
    names = {field.name for field in fields(RankMeasurement)}
    of_ranks = {name: changes.pop(name) for name in [*changes] if name in names}
    names = {field.name for field in fields(TrialFacts)}
    facts = TrialFacts(**{name: changes.pop(name) for name in [*changes] if name in names})
    changed = (replace(one, **of_ranks) for one in ranks)
    values["ranks"] = tuple(
        one if number else replace(one, facts=facts) for number, one in enumerate(changed)
    )
    return TrialRecord(**{**values, **changes})


def two_ranks(**changes: Any) -> TrialRecord:
    """Three steps, of which the slower rank takes 0.6 s for 120 samples of both."""
    phases = {
        "data": (0.01, 0.03),
        "forward": (0.02,),
        "backward": (0.03,),
        "optimizer": (0.01,),
    }
    ranks = [
        rank(
            0,
            window([0.1, 0.2, 0.1], 90, [2.0, 1.5, 1.0]),
            unsynced=window([0.05, 0.1, 0.0], 90),
            phases={"timed": phases},
            peaks=MemoryPeaks(host_bytes=100),
            reduced_bytes_per_step=400,
        ),
        rank(
            1,
            window([0.2, 0.1, 0.3], 30, [4.0, 1.5, 3.0]),
            unsynced=window([0.1, 0.1, 0.1], 30),
            setup_seconds=0.7,
            peaks=MemoryPeaks(host_bytes=300),
            reduced_bytes_per_step=404,
        ),
    ]
    values = {"duration_seconds": 2.5, "verification": PASSED, **changes}
    return record(trial(group_size=2), ranks, **values)


def run(
    spec: Configuration,
    throughput: float,
    *,
    losses: Sequence[float] = (2.0, 1.8, 1.7, 1.5),
    unsynced: float | None = None,
    **changes: Any,
) -> TrialRecord:
    """A completed trial of equal steps with exactly this throughput on every rank together.

    `unsynced` is the step time in seconds without gradient synchronization.
    """
    steps, size = spec.steps, spec.group_size
    per_rank = (spec.batch_size or 1) * steps
    timed = window((per_rank * size / throughput / steps,) * steps, per_rank, losses)
    bare = None if unsynced is None else window((unsynced,) * steps, per_rank)
    ranks = [
        rank(number, timed, unsynced=bare, peaks=MemoryPeaks(host_bytes=300 * 2**20 + number))
        for number in range(size)
    ]
    return record(spec, ranks, **{"verification": PASSED, **changes})


def loss_run(
    losses: Sequence[float], *, step_seconds: float = 0.1, repetition: int = 0, **spec: Any
) -> TrialRecord:
    """One rank with a constant step; `spec` changes the configuration."""
    steps = len(losses)
    timed = window([step_seconds] * steps, 32 * steps, losses)
    return record(trial(steps=steps, **spec), [rank(0, timed)], repetition=repetition)


def runs(spec: Configuration, throughputs: Sequence[float], **changes: Any) -> list[TrialRecord]:
    """A repetition for every throughput."""
    return [
        run(spec, throughput, repetition=repetition, **changes)
        for repetition, throughput in enumerate(throughputs)
    ]


def noisy_sweep() -> list[TrialRecord]:
    """dp and ddp on one and two replicas; the fastest, ddp on two, is too noisy to state."""
    steady = (1000.0, 1010.0, 990.0)
    return [
        *runs(trial("single", "none"), steady),
        *(r for size in (1, 2) for r in runs(trial("dp", "threads", size), steady)),
        *runs(trial(), steady),
        *runs(trial(group_size=2), (1000.0, 9000.0, 600.0)),
    ]


def stored(records: Sequence[TrialRecord], name: str = "demo", **changes: Any) -> Sweep:
    """A sweep as if it were read from the folder `name`."""
    sweep = Sweep(
        folder=Path(name),
        command=command(),
        spec=sweep_spec(),
        environments={"e0": capture()},
        records=tuple(records),
        warnings=(),
    )
    return replace(sweep, **changes)


def side(label: str, *groups: Sequence[TrialRecord], **changes: Any) -> Side:
    records = [record for group in groups for record in group]
    sweep = stored(records, label, environments=changes.pop("environments", {}))
    return Side(label=label, sweep=sweep, **changes)


def compare_speeds(baseline: Side, candidate: Side, *, force: bool = False) -> Comparison:
    return compare_sides(baseline, candidate, ["images_per_second"], force=force)


def throughputs(
    baseline: Mapping[int, Sequence[float]], candidate: Mapping[int, Sequence[float]]
) -> Comparison:
    """Two sweeps of ddp on one replica: {batch size: throughput of every repetition}."""
    return compare_speeds(
        side("before", *(runs(trial(batch_size=b), speeds) for b, speeds in baseline.items())),
        side("after", *(runs(trial(batch_size=b), speeds) for b, speeds in candidate.items())),
    )


def steps_of(
    implementation: str,
    timed: Sequence[float],
    unsynced: Sequence[float] | None = None,
    *,
    backend: str | None = None,
    repetition: int = 0,
    **changes: Any,
) -> TrialRecord:
    """A completed trial whose ranks took so many seconds for every step.

    One value a process; `group_size` says otherwise for one process of several replicas.
    """
    values = {"group_size": len(timed), "batch_size": 32, "steps": STEPS, **changes}
    spec = trial(implementation, backend or BACKENDS.get(implementation, "gloo"), **values)
    ranks = [
        rank(
            number,
            window([seconds] * STEPS, len(spec.sample_range(number)) * STEPS, [1.0] * STEPS),
            unsynced=None if unsynced is None else window([unsynced[number]] * STEPS, 1),
        )
        for number, seconds in enumerate(timed)
    ]
    return record(spec, ranks, repetition=repetition, verification=PASSED)


def weak_sweep(repetition: int = 0, slower: float = 1.0) -> list[TrialRecord]:
    """Two ranks: contention 0.8, wrapper 12.5/13.5, waiting 13.5/14, communication 0.7.

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


def slower(throughputs: Sequence[float], share: float) -> list[float]:
    """The same runs, each of them longer by `share`."""
    return [value / (1 + share) for value in throughputs]


def judged(
    before: Side,
    after: Side,
    tolerances: Mapping[str, float] | None = None,
    *,
    in_turn: bool = False,
) -> Comparison:
    limits = tolerances or {"images_per_second": 0.03}
    return judge(compare_sides(before, after, limits, ran_in_turn=in_turn), limits, alpha=ALPHA)


def assessment(
    changes: Mapping[int, Sequence[float]],
    *extra: TrialRecord,
    tolerances: Mapping[str, float] | None = None,
) -> Comparison:
    """A quiet baseline, and a candidate with these throughputs by batch size."""
    before = side("before", *(runs(trial(batch_size=batch), QUIET) for batch in changes))
    after = side("after", *(runs(trial(batch_size=b), v) for b, v in changes.items()), list(extra))
    return judged(before, after, tolerances)


ALL_PASS = assessment({16: QUIET})
REGRESSED = assessment({16: QUIET, 32: slower(QUIET, 0.10)})
INCONCLUSIVE = assessment({16: NOISY})
