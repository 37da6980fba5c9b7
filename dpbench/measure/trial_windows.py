"""The windows of one rank: warmup, steps with and without synchronization in turns, and in the
first repetition the instrumented steps.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

from dpbench.architecture import Architecture
from dpbench.measure.checksum import tensors_checksum
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
from dpbench.measure.step import Trainer, build_optimizer
from dpbench.measure.window import (
    Timing,
    joined_timing,
    relative_half_width,
    segment_sizes,
    time_steps,
)
from dpbench.parallel.tree import map_tensors
from dpbench.records.trial import Phases, RankMeasurement, ReplicaPhases, Window
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS


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
        # Ranks with gradients of their own must skip a step of float16 together.
        apart = self.traits.averages_parameters or self.traits.shards_parameters
        self.trainer: Trainer = trainer_of(trial.workload)(
            self.model,
            self.model.optimizer(build_optimizer(self.module, trial)),
            architecture,
            feed,
            trial.accumulation_steps,
            Numbers(device, trial.workload.dtype, dist.group.WORLD if apart else None),
        )
        self.meter = DeviceMeter(trial.devices if trial.process_count == 1 else [str(device)])
        torch.manual_seed(trial.workload.seed + 1 + rank)  # dropout masks differ between ranks

    def measure(self, *, setup_started: float) -> RankMeasurement:
        """Run all windows. The instrumented steps are slower and come last."""
        warmup = self.batches.take(self.trial.warmup_steps)
        reset_peak_device_memory(self.device)
        setup_seconds = perf_counter() - setup_started
        for batches in warmup:
            self.trainer.step(batches)
        self.trainer.take_losses()
        measurement = replace(self._alternating_windows(), setup_seconds=setup_seconds)
        self.model.settle()
        measurement = replace(
            measurement, final_checksum=tensors_checksum(self.module.parameters())
        )
        return measurement if self.trial.repetition else self._instrumented(measurement)

    def _alternating_windows(self) -> RankMeasurement:
        """Time segments with and without synchronization in turns, both on the same samples.

        Two neighboring pairs of segments have the opposite order, so that a drift of the machine's
        speed affects both windows alike. In precision mode the windows end after the first pair at
        which the mean step with synchronization is precise enough on all ranks.
        """
        trial, warmup_steps = self.trial, self.trainer.steps
        timed = _OpenWindow(self, sync=True)
        windows = [timed]
        if self.traits.can_leave_out_sync:
            windows.append(_OpenWindow(self, sync=False))
        host_memory_bytes = None
        for steps in segment_sizes(trial):
            for window in windows:
                window.run(self.batches.take(steps))
                if host_memory_bytes is None:  # before the first copy of the state
                    host_memory_bytes = peak_host_memory_bytes()
            windows.reverse()
            if timed.steps < trial.timed_steps and self._is_precise(timed):
                break
        total = timed.communicated()
        without_sync = next((window for window in windows if window is not timed), None)
        return RankMeasurement(
            rank=self.rank,
            pid=os.getpid(),
            device=str(self.device),
            timed=timed.closed(),
            without_sync=None if without_sync is None else without_sync.closed(),
            setup_seconds=0.0,
            peak_host_memory_bytes=host_memory_bytes,
            peak_device_memory_bytes=peak_device_memory_bytes(self.device),
            peak_reserved_memory_bytes=peak_reserved_memory_bytes(self.device),
            energy_joules=timed.joules,
            clock_hertz=self.meter.clock_hertz(),
            reduced_bytes_per_step=None if total is None else total.bytes // timed.steps,
            collectives_per_step=None if total is None else total.collectives / timed.steps,
            warmup_steps=warmup_steps,
            timed_steps=timed.steps,
            sample_checksum=tensors_checksum(i for step in timed.batches for i in step),
            initial_checksum=self.initial_checksum,
        )

    def _is_precise(self, window: _OpenWindow) -> bool:
        if self.trial.precision is None:
            return False
        own = relative_half_width(joined_timing(window.segments).step_seconds)
        return self.ranks.largest(own) <= self.trial.precision

    def _instrumented(self, measurement: RankMeasurement) -> RankMeasurement:
        trial, trace = self.trial, None
        if trial.traces_gradients:
            batches = [[one] for one in self.batches.take_micro(2 * trial.gradient_steps)]
            trace = trace_gradients(self.trainer, self.module, batches, self.device, self.ranks)
        measurement = replace(measurement, gradient_trace=trace)
        if trial.phase_steps == 0:
            return measurement
        phases, of_replicas = self._phases(sync=True)
        bare = self._phases(sync=False)[0] if self.traits.can_leave_out_sync else None
        return replace(
            measurement, phases=phases, replica_phases=of_replicas, phases_without_sync=bare
        )

    def _phases(self, *, sync: bool) -> tuple[Phases, ReplicaPhases | None]:
        batches = self.batches.take(self.trial.phase_steps)
        return time_phases(self.trainer, batches, self.device, self.ranks, sync=sync)

    def trace(self, folder: Path) -> None:
        """Write a timeline of a few steps; only after `measure`, since tracing costs speed."""
        path = trace_path(folder, self.trial, self.rank)
        batches = self.batches.take(self.trial.trace_steps)
        write_trace(path, self.trainer, batches, self.device, self.ranks)


class _OpenWindow:
    """A window that grows by segments."""

    def __init__(self, trial: TrialWindows, *, sync: bool) -> None:
        self.segments: list[Timing] = []
        self.batches: list[StepBatches] = []
        self.joules: float | None = 0.0
        """Energy so far; None if a device does not report it."""
        self._losses: tuple[float, ...] = ()
        self._communicated: list[tuple[Communication | None, Communication | None]] = []
        self._trial = trial
        self._sync = sync

    @property
    def steps(self) -> int:
        return len(self.batches)

    def run(self, batches: Sequence[StepBatches]) -> None:
        """Time a segment. The steps of one without synchronization are undone afterwards: replicas
        must not drift apart."""
        trial, trainer = self._trial, self._trial.trainer
        saved = None if self._sync else _SavedState(trainer, trial.module, trial.device)

        def step(indices: StepBatches) -> None:
            trainer.step(indices, sync=self._sync)

        communicated, joules = trial.model.communication(), trial.meter.joules()
        self.segments.append(time_steps(step, batches, trial.device, trial.ranks))
        self.joules = _total(self.joules, joules, trial.meter.joules())
        self._communicated.append((communicated, trial.model.communication()))
        self.batches += batches
        self._losses += trainer.take_losses()
        if saved is not None:
            saved.restore()

    def communicated(self) -> Communication | None:
        """Bytes and collectives of all steps; None if the implementation does not report them."""
        total = Communication(bytes=0, collectives=0)
        for before, after in self._communicated:
            if before is None or after is None:
                return None
            total = Communication(
                total.bytes + after.bytes - before.bytes,
                total.collectives + after.collectives - before.collectives,
            )
        return total

    def closed(self) -> Window:
        timing = joined_timing(self.segments)
        return Window(
            start_seconds=timing.start_seconds,
            seconds=timing.seconds,
            step_seconds=timing.step_seconds,
            segment_steps=tuple(len(segment.step_seconds) for segment in self.segments),
            samples=sum(indices.numel() for step in self.batches for indices in step),
            losses=self._losses,
            cpu_seconds=timing.usage.cpu_seconds,
            page_faults=timing.usage.page_faults,
        )


class _SavedState:
    """A copy in host memory of everything that a step changes."""

    def __init__(self, trainer: Trainer, module: torch.nn.Module, device: torch.device) -> None:
        self._trainer = trainer
        self._devices = [device] if device.type == "cuda" else []
        tensors = (*module.parameters(), *module.buffers())
        self._tensors = [(tensor, _on_host(tensor)) for tensor in tensors]
        self._optimizer = map_tensors(_on_host, trainer.optimizer.state_dict())
        self._scaler = trainer.numbers.scaler.state_dict()
        self._random = torch.get_rng_state(), [torch.cuda.get_rng_state(d) for d in self._devices]

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, saved in self._tensors:
            tensor.copy_(saved)
        self._trainer.optimizer.load_state_dict(self._optimizer)
        self._trainer.numbers.scaler.load_state_dict(self._scaler)
        torch.set_rng_state(self._random[0])
        for device, state in zip(self._devices, self._random[1], strict=True):
            torch.cuda.set_rng_state(state, device)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _total(total: float | None, before: float | None, after: float | None) -> float | None:
    return None if total is None or before is None or after is None else total + after - before
