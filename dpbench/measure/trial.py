"""One rank's part of one trial, from the process group to the raw measurement.

`measure_trial` is the order of a trial: the device, the samples, the process group, the model;
warmup; segments with and without synchronization in turns; then what is slow, and would warm the
windows up: the instrumented steps and, in the first repetition, the trace of gradients before them,
the verification of gradients and the count of operations after them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from dpbench.architecture import Architecture, items_per_sample, load_architecture
from dpbench.data import datasets
from dpbench.data.registry import SYNTHETIC, is_function
from dpbench.data.user_dataset import SampleSource, UserDataset, load_user_dataset
from dpbench.measure.batches import StepSampler, loading_batches
from dpbench.measure.device import (
    forked_random,
    peak_device_memory,
    peak_host_memory_bytes,
    reset_peak_device_memory,
    set_devices_and_threads,
    set_tf32,
)
from dpbench.measure.instruments import flops_per_item, time_phases, trace_gradients
from dpbench.measure.nccl_log import nccl_transports
from dpbench.measure.nvml import gpu_states
from dpbench.measure.rank_group import RankGroup, rank_group
from dpbench.measure.rank_model import RankModel, build_module, build_rank_model
from dpbench.measure.step import BenchmarkStepper, LoadSamples, StepIndices
from dpbench.measure.unused import unused_parameters_named
from dpbench.measure.verification import checksum, verify
from dpbench.measure.window import joined, segment_sizes, time_steps
from dpbench.parallel import ShardedOptimizer
from dpbench.parallel.agreement import tensors_sha256
from dpbench.records.trial import RankMeasurement, Window
from dpbench.specs import TrialSpec

HOST = torch.device("cpu")


def measure_trial(trial: TrialSpec, prepared: Path | None, rank: int) -> RankMeasurement:
    """Run `trial` as `rank`.

    The first repetition of a configuration also traces and verifies its gradients and counts
    operations: another repetition would find the same.

    Args:
        prepared: the folder of the prepared datasets; None if the samples are generated.
    """
    started = perf_counter()
    devices = set_devices_and_threads(trial, rank)
    device = devices[0]
    set_tf32(trial.workload.dtype)
    architecture = load_architecture(trial.workload.architecture)
    source = _source(trial, architecture, prepared)
    sampler = StepSampler(trial, rank, len(source), device if trial.prefetch is None else HOST)
    verification = None
    with (
        loading_batches(trial, rank, source, device) as load,
        nccl_transports(trial.backend) as transports,
        rank_group(trial.backend, trial.process_count) as ranks,
    ):
        run = TrialRun(trial, rank, architecture, load, sampler, devices, ranks)
        warmup = sampler.steps(trial.warmup_steps)
        gpu_states(device)  # opens NVML before the windows, whose ends read it
        reset_peak_device_memory(*devices)
        setup_seconds = perf_counter() - started
        with unused_parameters_named(run.stepper.model.module):
            run.warm_up(warmup)
            measurement = run.time_windows(setup_seconds)
        measurement = run.add_phases_and_gradients(measurement)
        measurement = replace(measurement, transports=transports())
        del run
        if trial.repetition == 0:
            # After the windows, so that the float64 tensors neither add to their peak memory nor
            # warm anything up for them.
            verification = verify(trial, architecture, source, rank, ranks)
    counts_flops = (rank, trial.repetition) == (0, 0)
    return replace(
        measurement,
        item=architecture.item,
        items_per_sample=items_per_sample(architecture),
        verification=verification,
        # Counted last; a failure must not lose the measurement, and is reported.
        flops_per_item=flops_per_item(architecture, source, device) if counts_flops else None,
    )


def _source(trial: TrialSpec, architecture: Architecture, prepared: Path | None) -> SampleSource:
    """The samples in host memory."""
    workload = trial.workload
    if is_function(workload.dataset):
        return UserDataset(load_user_dataset(workload.dataset, seed=workload.seed))
    samples = trial.global_batch_size
    if workload.dataset == SYNTHETIC:
        samples = max(samples, datasets.synthetic_samples(architecture))
    return datasets.load_dataset(
        workload.dataset, prepared, architecture, seed=workload.seed, samples=samples
    )


class TrialRun:
    """A rank's model, and the steps that are taken with it."""

    def __init__(
        self,
        trial: TrialSpec,
        rank: int,
        architecture: Architecture,
        load: LoadSamples,
        sampler: StepSampler,
        devices: Sequence[torch.device],
        ranks: RankGroup,
    ) -> None:
        self.trial, self.rank, self.devices, self.ranks = trial, rank, devices, ranks
        self.sampler, self.timed_steps = sampler, trial.timed_steps
        module = build_module(architecture, trial.workload, devices[0])
        self.initial_checksum = checksum(module)
        model = build_rank_model(module, architecture, trial, rank, devices[0])
        self.stepper = BenchmarkStepper(model, load)

    def warm_up(self, warmup: Sequence[StepIndices]) -> None:
        """Take the warm-up steps. If the window fills a time, their second half is timed and sets
        the number of its steps, the same on all ranks."""
        untimed = len(warmup) // 2 if self.trial.window_seconds else len(warmup)
        for indices in warmup[:untimed]:
            self.stepper.step(indices)
        if untimed < len(warmup):
            pace = time_steps(self.stepper.step, warmup[untimed:], self.devices, self.ranks)
            slowest = self.ranks.max_over_ranks(median(pace.step_seconds))
            self.timed_steps = self.trial.filling_steps(slowest)

    def time_windows(self, setup_seconds: float) -> RankMeasurement:
        """Time segments with and without synchronization in turns, both on the same samples.

        Two neighboring pairs of segments have the opposite order, so that a drift of the machine's
        speed affects both windows alike.
        """
        trial, warmup_steps = self.trial, self.stepper.steps
        module, wrapper = self.stepper.model.module, self.stepper.model.wrapper
        segments: dict[bool, list[Window]] = {True: [], False: []}
        turns = [True, False] if trial.has_unsynced_window else [True]
        taken: list[StepIndices] = []
        before = wrapper.communication()  # steps without synchronization add nothing to it
        peaks: tuple[int, int | None, int | None] | None = None
        for count in segment_sizes(self.timed_steps):
            steps = self.sampler.steps(count)
            taken += steps
            for sync in turns:
                segments[sync].append(self._time_segment(steps, sync=sync))
                if peaks is None:
                    # Training needs no more than the first segment: steps without synchronization
                    # add copies of the state and gradients beside the buckets.
                    peaks = (peak_host_memory_bytes(), *peak_device_memory(*self.devices))
            turns.reverse()
        after = wrapper.communication()
        reduced_bytes = collectives = None
        if before is not None and after is not None:
            reduced_bytes = (after.bytes - before.bytes) // self.timed_steps
            collectives = (after.collectives - before.collectives) / self.timed_steps
        assert peaks is not None  # a window has a segment
        host, allocated, reserved = peaks
        wrapper.sync_parameters()
        membership = self.ranks.membership
        return RankMeasurement(
            rank=self.rank,
            pid=os.getpid(),
            device=str(self.devices[0]),
            timed=joined(segments[True]),
            without_sync=joined(segments[False]) if segments[False] else None,
            setup_seconds=setup_seconds,
            peak_host_memory_bytes=host,
            peak_device_memory_bytes=allocated,
            peak_reserved_memory_bytes=reserved,
            reduced_bytes_per_step=reduced_bytes,
            collectives_per_step=collectives,
            comm_init_seconds=membership.comm_init_seconds if membership else None,
            group_class=membership.group_class if membership else None,
            warmup_steps=warmup_steps,
            timed_steps=self.timed_steps,
            sample_checksum=tensors_sha256(("", indices) for step in taken for indices in step),
            initial_checksum=self.initial_checksum,
            final_checksum=checksum(module),
            threads=torch.get_num_threads(),
            sync_batch_norms=sum(
                isinstance(layer, torch.nn.SyncBatchNorm) for layer in module.modules()
            ),
        )

    def _time_segment(self, steps: Sequence[StepIndices], *, sync: bool) -> Window:
        """Time a segment. Steps without synchronization are undone afterwards: replicas must not
        drift apart."""

        step = partial(self.stepper.step, sync=sync)
        with nullcontext() if sync else undone(self.stepper.model, self.devices):
            return time_steps(step, steps, self.devices, self.ranks)

    def add_phases_and_gradients(self, measurement: RankMeasurement) -> RankMeasurement:
        """Take the instrumented steps.

        Phases, also without synchronization, are timed in every repetition: their intervals come
        from the differences between repetitions.
        """
        trial, stepper, devices, ranks = self.trial, self.stepper, self.devices, self.ranks
        if trial.traces_gradients and trial.repetition == 0:
            # A step takes one micro-batch, whatever the trial accumulates: the simulation combines
            # micro-steps itself.
            alone = [[indices] for indices in self.sampler.micro_steps(trial.gradient_steps)]
            trace = trace_gradients(stepper, alone, devices[0], ranks)
            measurement = replace(measurement, gradient_trace=trace)
        if trial.phase_steps == 0:
            return measurement
        steps = self.sampler.steps(trial.phase_steps)
        phases, of_replicas = time_phases(stepper, steps, devices, ranks, sync=True)
        bare = None
        if trial.has_unsynced_window:
            steps = self.sampler.steps(trial.phase_steps)
            bare, _ = time_phases(stepper, steps, devices, ranks, sync=False)
        return replace(
            measurement, phases=phases, replica_phases=of_replicas, phases_without_sync=bare
        )


@contextmanager
def undone(model: RankModel, devices: Sequence[torch.device]) -> Iterator[None]:
    """A context whose steps leave no trace in parameters, buffers, optimizer, loss scale and random
    state.

    Copies wait in host memory and are written back in place, as the device may have no room for a
    second state of the optimizer.
    """
    # Its state is elsewhere; steps of ddp-sharded always synchronize.
    assert not isinstance(model.optimizer, ShardedOptimizer)
    states, scaler = model.optimizer.state, model.amp.scaler
    stepped = set(states)
    tensors = [*model.module.parameters(), *model.module.buffers()]
    for state in states.values():  # torch's optimizers keep nothing but tensors there
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    saved = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
    scaler_state = scaler.state_dict()
    with forked_random(*devices):
        yield
    with torch.no_grad():
        for tensor, before in zip(tensors, saved, strict=True):
            tensor.copy_(before)
    for parameter in {*states} - stepped:  # stepped for the first time
        del states[parameter]
    scaler.load_state_dict(scaler_state)
