"""One rank's part of one trial, from the process group to the raw measurement."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import torch

from dpbench import architecture as architectures
from dpbench.architecture import Architecture
from dpbench.data import datasets
from dpbench.data.datasets import Dataset
from dpbench.data.sharding import GlobalBatchSampler
from dpbench.measure.allocator import keep_freed_memory
from dpbench.measure.checksums import tensors_checksum
from dpbench.measure.implementations import Communication, wrap
from dpbench.measure.memory import (
    peak_device_memory_bytes,
    peak_host_memory_bytes,
    reset_peak_device_memory,
)
from dpbench.measure.rank_group import RankGroup, rank_group
from dpbench.measure.training import Trainer, build_optimizer
from dpbench.measure.verification import verify
from dpbench.measure.window import Timing, time_steps
from dpbench.records import RankMeasurement, Verification, Window
from dpbench.specs import IMPLEMENTATIONS, TrialSpec

SYNTHETIC_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank sends back; no measurement if its gradients were wrong."""

    item: str
    verification: Verification
    measurement: RankMeasurement | None


def measure(trial: TrialSpec, prepared: Path | None, rank: int) -> RankReport:
    """Runs `trial` as `rank`; `prepared` is the folder of the dataset, None if synthetic."""
    started = perf_counter()
    allocator = keep_freed_memory()
    device = _settle_on_device(trial, rank)
    architecture = architectures.load(trial.workload.architecture)
    dataset = _load_dataset(trial, architecture, prepared)
    with rank_group(trial) as ranks:
        run = _Run(trial, rank, architecture, dataset.to(device), device, ranks)
        measurement = replace(run.measure(setup_started=started), allocator=allocator)
        del run
        # After the windows, so that its float64 tensors neither count into their peak memory nor
        # warm anything up for them. No speed leaves this function before the proof.
        verification = verify(trial, architecture, dataset, rank, ranks)
    return RankReport(architecture.item, verification, measurement if verification.passed else None)


class _Run:
    """The timed part: warmup, the window, the same window without synchronization."""

    def __init__(
        self,
        trial: TrialSpec,
        rank: int,
        architecture: Architecture,
        dataset: Dataset,
        device: torch.device,
        ranks: RankGroup,
    ) -> None:
        self.trial = trial
        self.rank = rank
        self.device = device
        self.ranks = ranks
        torch.manual_seed(trial.workload.seed)
        self.module = architecture.build_model().to(device)
        self.initial_checksum = tensors_checksum(self.module.parameters())
        self.model = wrap(self.module, trial, rank)
        optimizer = build_optimizer(self.module, trial.workload)
        self.trainer = Trainer(
            self.model, optimizer, architecture, dataset, trial.accumulation_steps
        )
        self.batches = self._batches_per_step(len(dataset))
        torch.manual_seed(trial.workload.seed + 1 + rank)  # dropout masks differ between ranks

    def measure(self, *, setup_started: float) -> RankMeasurement:
        trial, trainer, batches = self.trial, self.trainer, self.batches
        warmup, timed = trial.warmup_steps, trial.timed_steps
        reset_peak_device_memory(self.device)
        setup_seconds = perf_counter() - setup_started
        for number in range(warmup):
            trainer.step(batches[number])
        warmup_steps = trainer.steps
        trainer.take_losses()
        before = self.model.communication()
        timing = self._time(warmup, sync=True)
        timed_steps = trainer.steps - warmup_steps
        after = self.model.communication()
        window = self._window(timing, batches[warmup : warmup + timed])
        peak_device = peak_device_memory_bytes(self.device)
        peak_host = peak_host_memory_bytes()
        self.model.settle()
        final_checksum = tensors_checksum(self.module.parameters())
        without_sync = self._window_without_sync()  # last: it lets the replicas drift apart
        return RankMeasurement(
            rank=self.rank,
            pid=os.getpid(),
            device=str(self.device),
            timed=window,
            setup_seconds=setup_seconds,
            peak_host_memory_bytes=peak_host,
            peak_device_memory_bytes=peak_device,
            reduced_bytes_per_step=_bytes_per_step(before, after, timed),
            collectives_per_step=_collectives_per_step(before, after, timed),
            warmup_steps=warmup_steps,
            timed_steps=timed_steps,
            sample_checksum=tensors_checksum(
                indices for step in batches[warmup : warmup + timed] for indices in step
            ),
            initial_checksum=self.initial_checksum,
            final_checksum=final_checksum,
            without_sync=without_sync,
        )

    def _window_without_sync(self) -> Window | None:
        if not IMPLEMENTATIONS[self.trial.implementation].can_leave_out_sync:
            return None
        first = self.trial.warmup_steps + self.trial.timed_steps
        timing = self._time(first, sync=False)
        return self._window(timing, self.batches[first:])

    def _time(self, first: int, *, sync: bool) -> Timing:
        trainer, batches = self.trainer, self.batches

        def step(number: int) -> None:
            trainer.step(batches[number], sync=sync)

        return time_steps(step, first, self.trial.timed_steps, self.device, self.ranks)

    def _window(self, timing: Timing, batches: list[list[torch.Tensor]]) -> Window:
        return Window(
            start_seconds=timing.start_seconds,
            seconds=timing.seconds,
            step_seconds=timing.step_seconds,
            samples=sum(indices.numel() for step in batches for indices in step),
            losses=self.trainer.take_losses(),
        )

    def _batches_per_step(self, dataset_size: int) -> list[list[torch.Tensor]]:
        """The sample indices of every micro-step of the trial, made before anything is timed."""
        trial = self.trial
        windows = 2 if IMPLEMENTATIONS[trial.implementation].can_leave_out_sync else 1
        steps = trial.warmup_steps + windows * trial.timed_steps
        first, count = trial.process_shard(self.rank)
        sampler = GlobalBatchSampler(
            dataset_size,
            trial.global_batch_size,
            first=first,
            count=count,
            seed=trial.workload.seed,
        )
        per_step = trial.accumulation_steps
        flat = [indices.to(self.device) for indices in sampler.batches(0, steps * per_step)]
        return [flat[i : i + per_step] for i in range(0, len(flat), per_step)]


def _settle_on_device(trial: TrialSpec, rank: int) -> torch.device:
    """Selects this process's device and its share of the cores."""
    device = torch.device(trial.devices[rank])
    replicas_here = trial.group_size if trial.process_count == 1 else 1
    torch.set_num_threads(trial.threads_per_replica * replicas_here)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _load_dataset(trial: TrialSpec, architecture: Architecture, prepared: Path | None) -> Dataset:
    samples = max(SYNTHETIC_SAMPLES, trial.global_batch_size)
    workload = trial.workload
    return datasets.load(
        workload.dataset, prepared, architecture, seed=workload.seed, samples=samples
    )


def _bytes_per_step(
    before: Communication | None, after: Communication | None, steps: int
) -> int | None:
    return None if before is None or after is None else (after.bytes - before.bytes) // steps


def _collectives_per_step(
    before: Communication | None, after: Communication | None, steps: int
) -> float | None:
    if before is None or after is None:
        return None
    return (after.collectives - before.collectives) / steps
