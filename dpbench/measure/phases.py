"""The phases of a step, in separate steps: their times, and a timeline.

Steps whose phases are timed synchronize at every change of phase. The timeline is for
chrome://tracing or Perfetto, from torch's profiler.

In a step with synchronization, the backward phase includes the exposed communication: gradients are
reduced in it (in dp, summed over the replicas), and local-sgd's parameter average is counted there
too, so that for every implementation the communication is backward with synchronization minus
backward without. Broadcasts of buffers by torch-ddp or ddp belong to forward. An implementation
that drives all replicas from one process also reports the phases within.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from dpbench.files import write_whole
from dpbench.measure.feed import StepBatches
from dpbench.measure.implementations.model import ReplicaSeconds
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.step import StepPhase, Trainer
from dpbench.measure.window import between_barriers, synchronize
from dpbench.records.trial import Phases, ReplicaPhases
from dpbench.specs import TrialSpec


class StepPhaseClock:
    """Adds up the seconds of each phase of a step; the device is idle at each reading."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._phase: StepPhase | None = None
        self._since = 0.0
        self.seconds: dict[StepPhase, float] = {}

    def enter(self, phase: StepPhase | None) -> None:
        """Change to `phase`; None ends the step."""
        synchronize(self._device)
        now = perf_counter()
        if self._phase is not None:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now


def time_phases(
    trainer: Trainer,
    batches: Sequence[StepBatches],
    device: torch.device,
    ranks: RankGroup,
    *,
    sync: bool,
) -> tuple[Phases, ReplicaPhases | None]:
    """Train on `batches`, one step each, with or without synchronization; the second result is the
    implementation's own report on its replicas."""
    steps: list[dict[StepPhase, float]] = []
    with between_barriers(device, ranks), trainer.model.replica_clock() as replica_seconds:
        told = [replica_seconds()]
        for step in batches:
            clock = StepPhaseClock(device)
            trainer.step(step, sync=sync, enter=clock.enter)
            steps.append(clock.seconds)
            told.append(replica_seconds())
    trainer.take_losses()
    return _phases(steps), _replica_phases(told)


def _replica_phases(told: Sequence[ReplicaSeconds | None]) -> ReplicaPhases | None:
    """The phases, from running totals before the first step and after each step."""
    totals = [seconds for seconds in told if seconds is not None]
    if len(totals) < len(told):
        return None
    steps = [
        {name: after[name] - before[name] for name in after} for before, after in pairwise(totals)
    ]
    return ReplicaPhases(
        scatter_seconds=tuple(seconds["scatter"] for seconds in steps),
        replicate_seconds=tuple(seconds["replicate"] for seconds in steps),
        compute_seconds=tuple(seconds["forward"] + seconds["backward"] for seconds in steps),
        gather_seconds=tuple(seconds["gather"] for seconds in steps),
        reduce_seconds=tuple(seconds["reduce"] for seconds in steps),
    )


def _phases(steps: Sequence[Mapping[StepPhase, float]]) -> Phases:
    return Phases(
        data_seconds=tuple(seconds["data"] for seconds in steps),
        forward_seconds=tuple(seconds["forward"] for seconds in steps),
        backward_seconds=tuple(seconds["backward"] for seconds in steps),
        optimizer_seconds=tuple(seconds["optimizer"] for seconds in steps),
    )


def trace_path(folder: Path, trial: TrialSpec, rank: int) -> Path:
    """Path of a rank's timeline."""
    return folder / f"trace-{trial.trial_id}-rank{rank}.json"


def write_trace(
    path: Path,
    trainer: Trainer,
    batches: Sequence[StepBatches],
    device: torch.device,
    ranks: RankGroup,
) -> None:
    """Train on `batches` under the profiler, with each phase as a named range, and write `path`."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    every_thread = _ExperimentalConfig(profile_all_threads=True)  # dp's replicas are threads
    profiler = profile(activities=activities, experimental_config=every_thread)
    with between_barriers(device, ranks), profiler:
        for step in batches:
            with _Ranges() as ranges:
                trainer.step(step, enter=ranges.enter)
    trainer.take_losses()
    path.parent.mkdir(parents=True, exist_ok=True)
    # The profiler takes only a path: a random one, so that nobody can place a link there.
    write_whole(path, lambda file: profiler.export_chrome_trace(str(file.name)))


class _Ranges(ExitStack):
    """Consecutive named ranges, and one range around them all."""

    def __enter__(self) -> _Ranges:
        super().__enter__()
        self.enter_context(record_function("step"))
        self._phase = self.enter_context(ExitStack())
        return self

    def enter(self, phase: StepPhase | None) -> None:
        self._phase.close()
        if phase is not None:
            self._phase.enter_context(record_function(phase))
