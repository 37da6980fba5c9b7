"""Runners that start nothing and answer at once, for testing everything above them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from dpbench.codec import content_hash, encode
from dpbench.folders import Sweep
from dpbench.launch.cluster import ClusterRunner
from dpbench.launch.machine import Machine
from dpbench.launch.trial_runner import TrialRunner
from dpbench.measure.instruments import PHASE_STEPS, TRACED_STEPS
from dpbench.records.collectives import CollectiveRecord, SizeTiming
from dpbench.records.environment import capture
from dpbench.records.trial import (
    GradientTrace,
    MemoryPeaks,
    Mode,
    Phase,
    RankMeasurement,
    Status,
    TrialFacts,
    TrialRecord,
    Verification,
    Window,
)
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.sweep.measuring import SweepRun
from dpbench.specs import Configuration, SweepSpec
from dpbench.specs.collective import CollectiveSpec
from dpbench.temporary import temporary_folder
from tests.builders import MACHINE, command
from tests.cli.command import PATHS

VARIABLES = {"DPBENCH_SYNTHETIC": "1", "PYTHONPATH": PATHS}
"""Environment variables of a command that uses these runners; see tests/site."""
SECONDS_PER_SAMPLE = 1e-4
SECONDS_PER_STEP = 2e-3
NCCL = ("nccl", "nccl-legacy", "nccl2")
COMMUNICATION_SECONDS = {
    "gloo": 3e-3,
    **dict.fromkeys(NCCL, 3e-4),
    "shm": 5e-4,
    "threads": 1e-3,
    "none": 0.0,
    "own": 3e-3,
}
NOISE = 0.01
OF_SCRIPTS = 16
"""Samples of a batch that a script chooses."""
SHARES: dict[Phase, float] = {"data": 0.02, "forward": 0.3, "backward": 0.6, "optimizer": 0.08}
"""Shares of a step without communication, which is all in backward."""
GRADIENTS, GRADIENT_BYTES = 8, 2**20
"""Number and size of the gradients, spread evenly over the backward pass, those of the last layer
first."""
PASSED = Verification(passed=True, max_relative_error=0.0, tolerance=1e-10, tensors_compared=1)
FACTS = TrialFacts(item="images")
FIRST_FACTS = replace(FACTS, flops_per_item=1e8, verification=PASSED)


@contextmanager
def in_use() -> Iterator[None]:
    """Commands in this process, and those that it starts, use these runners inside."""
    paths = os.pathsep.join(filter(None, (PATHS, os.environ.get("PYTHONPATH"))))
    replaced: dict[str, Any] = {
        "inspect_machine": lambda: machine(),
        "prepared_datasets": lambda *_, **__: nullcontext(),
    }
    with (
        patch.dict(os.environ, VARIABLES | {"PYTHONPATH": paths}),
        patch.multiple("dpbench.run.sweep.plan", **replaced, TrialRunner=SyntheticRunner),
        patch.multiple("dpbench.run.sweep.nodes", **replaced, ClusterRunner=SyntheticNode),
        patch("dpbench.run.collectives.inspect_machine", lambda: machine()),
        patch("dpbench.run.collectives.run_collective", lambda *a, **b: run_collective(*a, **b)),
    ):
        yield


def machine() -> Machine:
    """This machine, without its GPUs."""
    return Machine(environment=capture())


class SyntheticRunner(TrialRunner):
    """Answers from the cost model; every trial completes."""

    def __init__(self, here: Machine = MACHINE, *_: object) -> None:
        self.machines = (here,)

    def unusable_reason(self, configuration: Configuration) -> str | None:
        return configuration.unusable_reason

    def run(
        self, configuration: Configuration, repetition: int, time_limit_seconds: float
    ) -> TrialRecord:
        settings = replace(configuration, batch_size=configuration.batch_size or OF_SCRIPTS)
        timed = settings.filling_steps(_compute_seconds(settings))
        processes = range(settings.process_count)
        ranks = tuple(_rank(settings, repetition, rank, timed) for rank in processes)
        return TrialRecord(configuration=settings, status=Status.COMPLETED, ranks=ranks)


class SyntheticNode(ClusterRunner, SyntheticRunner):
    """The same on one of several nodes."""

    unusable_reason = SyntheticRunner.unusable_reason
    run = SyntheticRunner.run


def run_trials(spec: SweepSpec, runner: TrialRunner | None = None) -> tuple[TrialRecord, ...]:
    """The records of all trials, as a sweep runs them."""
    with temporary_folder() as place:
        planned = Sweep(folder=place / "s", command=command(), spec=spec)
        run = SweepRun(planned, runner or SyntheticRunner())
        return run.measure(TrialProgress(quiet=True)).records


def _rank(settings: Configuration, repetition: int, rank: int, steps: int) -> RankMeasurement:
    numbered = {"repetition": repetition} if repetition else {}
    noise = random.Random(f"{content_hash(encode(settings) | numbered)}/{rank}")
    compute = _compute_seconds(settings)
    backend, size = settings.backend, settings.group_size
    exposed = COMMUNICATION_SECONDS[backend] * (size - 1) / size
    seconds: dict[Mode, float] = {"timed": exposed}
    if settings.has_unsynced_window:
        seconds["unsynced"] = 0.0
    return RankMeasurement(
        rank=rank,
        pid=0,
        device=settings.devices[rank],
        windows={
            mode: window((settings, repetition), rank, compute + added, steps, noise)
            for mode, added in seconds.items()
        },
        phases={
            mode: _phases(compute, added, noise)
            for mode, added in seconds.items()
            if settings.is_instrumented
        },
        gradient_trace=None if repetition else _gradient_trace(settings, noise),
        setup_seconds=0.0,
        peaks=MemoryPeaks(host_bytes=2**28),
        facts=FACTS if repetition else FIRST_FACTS,
    )


def _compute_seconds(settings: Configuration) -> float:
    samples = max(settings.replica_batch_sizes) * settings.accumulate
    return SECONDS_PER_STEP + SECONDS_PER_SAMPLE * samples


def _noisy(value: float, noise: random.Random) -> float:
    return value * noise.uniform(1 - NOISE, 1 + NOISE)


def window(
    trial: tuple[Configuration, int], rank: int, seconds: float, steps: int, noise: random.Random
) -> Window:
    settings, _ = trial
    step_seconds = tuple(_noisy(seconds, noise) for _ in range(steps))
    samples = len(settings.sample_range(rank))
    return Window(
        seconds=sum(step_seconds),
        step_seconds=step_seconds,
        samples=samples * settings.accumulate * steps,
        losses=tuple(2.3 * 0.99**step for step in range(steps)),
    )


def _phases(compute: float, exposed: float, noise: random.Random) -> dict[Phase, tuple[float, ...]]:
    extra: dict[Phase, float] = {"backward": exposed}
    return {
        phase: tuple(
            _noisy(share * compute + extra.get(phase, 0.0), noise) for _ in range(PHASE_STEPS)
        )
        for phase, share in SHARES.items()
    }


def _gradient_trace(settings: Configuration, noise: random.Random) -> GradientTrace | None:
    """A trace of steps with one micro-batch, each faster or slower as a whole."""
    if not settings.traces_gradients:
        return None
    compute = SECONDS_PER_STEP + SECONDS_PER_SAMPLE * max(settings.replica_batch_sizes)
    start, end = SHARES["data"] + SHARES["forward"], 1 - SHARES["optimizer"]
    shares = [end - (end - start) * number / GRADIENTS for number in range(GRADIENTS)]
    steps = [_noisy(compute, noise) for _ in range(TRACED_STEPS)]
    return GradientTrace(
        parameters=tuple(f"layers.{number}.weight" for number in range(GRADIENTS)),
        gradient_bytes=(GRADIENT_BYTES,) * GRADIENTS,
        ready_seconds=tuple(tuple(step * share for share in shares) for step in steps),
        backward_end_seconds=tuple(step * end for step in steps),
        step_seconds=tuple(steps),
    )


LATENCY_SECONDS = {"gloo": 2e-4, "shm": 1e-5, **dict.fromkeys(NCCL, 2e-5)}
"""Latency α of two ranks; it grows with the hops of a ring, n - 1."""
BYTES_PER_SECOND = {"gloo": 1.5e9, "shm": 1e10, **dict.fromkeys(NCCL, 1e11)}
"""Bandwidth B of the ring's 2 (n - 1) ÷ n parts."""


def run_collective(spec: CollectiveSpec, **_: object) -> CollectiveRecord:
    """Answers from the cost model; every measurement completes."""
    ranks = tuple(_collective_rank(spec, rank) for rank in range(spec.group_size))
    return CollectiveRecord(spec=spec, status=Status.COMPLETED, ranks=ranks)


def seconds(spec: CollectiveSpec, nbytes: int) -> float:
    """Seconds of one call in the model."""
    hops = spec.group_size - 1
    parts = 1 if spec.collective == "broadcast" else hops / spec.group_size
    if spec.collective == "all_reduce":
        hops, parts = 2 * hops, 2 * parts
    rate = BYTES_PER_SECOND[spec.backend]
    return LATENCY_SECONDS[spec.backend] / 2 * hops + parts * nbytes / rate


def _collective_rank(spec: CollectiveSpec, rank: int) -> tuple[SizeTiming, ...]:
    noise = random.Random(f"{content_hash(spec)}/{rank}")
    return tuple(
        SizeTiming(
            nbytes=size,
            seconds=tuple(_noisy(seconds(spec, size), noise) for _ in range(spec.samples)),
            largest_error=0.0,
        )
        for size in spec.sizes_bytes
    )
