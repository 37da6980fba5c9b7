"""The windows of one rank: warmup, the timed window, and those that may only follow it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

from dpbench.architecture import Architecture
from dpbench.measure.device import (
    peak_device_memory_bytes,
    peak_host_memory_bytes,
    peak_reserved_memory_bytes,
    reset_peak_device_memory,
)
from dpbench.measure.feed import BatchQueue, Feed, StepBatches
from dpbench.measure.gradient_trace import trace_gradients
from dpbench.measure.implementations import Communication, wrap
from dpbench.measure.nvml import DeviceMeter
from dpbench.measure.own_step import trainer_of
from dpbench.measure.phases import time_phases, trace_path, write_trace
from dpbench.measure.precision import Numbers
from dpbench.measure.preparation import prepare
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.step import build_optimizer
from dpbench.measure.verification import tensors_checksum
from dpbench.measure.window import (
    Timing,
    joined_timing,
    precision_check_steps,
    relative_half_width,
    time_steps,
)
from dpbench.records.trial import (
    GradientTrace,
    Phases,
    RankMeasurement,
    ReplicaPhases,
    Window,
)
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters read before and after the timed window."""

    communication: Communication | None
    joules: float | None
    steps: int


class TrialWindows:
    """A model in the course of one trial's windows; the order of calls matters."""

    def __init__(
        self,
        trial: TrialSpec,
        rank: int,
        architecture: Architecture,
        feed: Feed,
        batches: BatchQueue,
        device: torch.device,
        ranks: RankGroup,
    ) -> None:
        self.trial = trial
        self.traits = IMPLEMENTATIONS[trial.implementation]
        self.rank = rank
        self.device = device
        self.ranks = ranks
        self.batches = batches
        torch.manual_seed(trial.workload.seed)
        self.module = prepare(architecture.build_model().to(device), trial.workload)
        self.initial_checksum = tensors_checksum(self.module.parameters())
        self.model = wrap(self.module, trial, rank)
        optimizer = self.model.optimizer(build_optimizer(self.module, trial))
        self.trainer = trainer_of(trial.workload)(
            self.model,
            optimizer,
            architecture,
            feed,
            trial.accumulation_steps,
            Numbers(device, trial.workload.dtype, self._voters()),
        )
        self.meter = DeviceMeter(trial.devices if trial.process_count == 1 else [str(device)])
        torch.manual_seed(trial.workload.seed + 1 + rank)  # dropout masks differ between ranks

    def _voters(self) -> dist.ProcessGroup | None:
        """The ranks with gradients of their own, which must skip a step together; None if there are
        none."""
        apart = self.traits.averages_parameters or self.traits.shards_parameters
        return dist.group.WORLD if apart else None

    def measure(self, *, setup_started: float) -> RankMeasurement:
        """Run all windows. Without synchronization the replicas drift apart, so that window comes
        after those that need them equal; the instrumented steps are slower and come last."""
        warmup = self.batches.take(self.trial.warmup_steps)
        reset_peak_device_memory(self.device)
        setup_seconds = perf_counter() - setup_started
        for batches in warmup:
            self.trainer.step(batches)
        measurement = self._timed_window(setup_seconds)
        without_sync = self._window_without_sync(measurement.timed_steps)
        gradient_trace = self._gradient_trace()
        phases, replica_phases = self._phases(sync=True)
        return replace(
            measurement,
            without_sync=without_sync,
            gradient_trace=gradient_trace,
            phases=phases,
            phases_without_sync=self._phases(sync=False)[0],
            replica_phases=replica_phases,
        )

    def trace(self, folder: Path) -> None:
        """Write a timeline of a few steps; only after `measure`, since tracing costs speed."""
        path = trace_path(folder, self.trial, self.rank)
        batches = self.batches.take(self.trial.trace_steps)
        write_trace(path, self.trainer, batches, self.device, self.ranks)

    def _timed_window(self, setup_seconds: float) -> RankMeasurement:
        self.trainer.take_losses()
        before = self._counters()
        timing, batches = self._time_until_precise()
        after, clock_hertz = self._counters(), self.meter.clock_hertz()
        reduced_bytes, collectives = _communication_per_step(before, after)
        measurement = RankMeasurement(
            rank=self.rank,
            pid=os.getpid(),
            device=str(self.device),
            timed=self._window(timing, batches),
            setup_seconds=setup_seconds,
            peak_host_memory_bytes=peak_host_memory_bytes(),
            peak_device_memory_bytes=peak_device_memory_bytes(self.device),
            peak_reserved_memory_bytes=peak_reserved_memory_bytes(self.device),
            energy_joules=_difference(before.joules, after.joules),
            clock_hertz=clock_hertz,
            reduced_bytes_per_step=reduced_bytes,
            collectives_per_step=collectives,
            warmup_steps=before.steps,
            timed_steps=after.steps - before.steps,
            sample_checksum=tensors_checksum(indices for step in batches for indices in step),
            initial_checksum=self.initial_checksum,
        )
        self.model.settle()
        return replace(measurement, final_checksum=tensors_checksum(self.module.parameters()))

    def _counters(self) -> _Counters:
        return _Counters(self.model.communication(), self.meter.joules(), self.trainer.steps)

    def _time_until_precise(self) -> tuple[Timing, list[StepBatches]]:
        """Time as many steps as were asked for, or fewer once the mean step is known precisely
        enough.

        All ranks stop at the same step, when the least precise one is precise enough.
        """
        trial = self.trial
        most = trial.timed_steps
        sizes = [most] if trial.precision is None else precision_check_steps(most, trial.sync_every)
        segments: list[Timing] = []
        taken: list[StepBatches] = []
        for size in sizes:
            batches = self.batches.take(size - len(taken))
            segments.append(self._time(batches, sync=True))
            taken += batches
            if size < most and self._is_precise(joined_timing(segments).step_seconds):
                break
        return joined_timing(segments), taken

    def _is_precise(self, step_seconds: Sequence[float]) -> bool:
        assert self.trial.precision is not None
        return self.ranks.largest(relative_half_width(step_seconds)) <= self.trial.precision

    def _window_without_sync(self, steps: int) -> Window | None:
        if not self.traits.can_leave_out_sync:
            return None
        batches = self.batches.take(steps)
        return self._window(self._time(batches, sync=False), batches)

    def _gradient_trace(self) -> GradientTrace | None:
        if not self.trial.traces_gradients:
            return None
        batches = [[one] for one in self.batches.take_micro(2 * self.trial.gradient_steps)]
        return trace_gradients(self.trainer, self.module, batches, self.device, self.ranks)

    def _phases(self, *, sync: bool) -> tuple[Phases | None, ReplicaPhases | None]:
        steps = self.trial.phase_steps
        if steps == 0 or not (sync or self.traits.can_leave_out_sync):
            return None, None
        batches = self.batches.take(steps)
        return time_phases(self.trainer, batches, self.device, self.ranks, sync=sync)

    def _time(self, batches: Sequence[StepBatches], *, sync: bool) -> Timing:
        def step(indices: StepBatches) -> None:
            self.trainer.step(indices, sync=sync)

        return time_steps(step, batches, self.device, self.ranks)

    def _window(self, timing: Timing, batches: Sequence[StepBatches]) -> Window:
        return Window(
            start_seconds=timing.start_seconds,
            seconds=timing.seconds,
            step_seconds=timing.step_seconds,
            samples=sum(indices.numel() for step in batches for indices in step),
            losses=self.trainer.take_losses(),
            cpu_seconds=timing.usage.cpu_seconds,
            page_faults=timing.usage.page_faults,
        )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _communication_per_step(before: _Counters, after: _Counters) -> tuple[int | None, float | None]:
    """Reduced bytes and collectives; None if the implementation does not report them."""
    if before.communication is None or after.communication is None:
        return None, None
    steps = after.steps - before.steps
    reduced_bytes = after.communication.bytes - before.communication.bytes
    collectives = after.communication.collectives - before.communication.collectives
    return reduced_bytes // steps, collectives / steps
