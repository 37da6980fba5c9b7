"""One rank's part of one trial, from the process group to the raw measurement.

`measure_trial` is the order of a trial: the device, the samples, the process group, the model;
warmup; segments as they train and unsynced ones in turns; then what is slow, and would warm the
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
from dpbench.data.datasets import Dataset, Splits, synthetic_dataset, synthetic_samples
from dpbench.data.registry import SYNTHETIC, is_function, prepared_file
from dpbench.data.user_dataset import UserDataset, load_user_dataset
from dpbench.measure.batches import Segment, StepPlan, loading_batches
from dpbench.measure.device import (
    forked_random,
    memory_peaks,
    reset_peak_device_memory,
    set_devices_and_threads,
    set_tf32,
)
from dpbench.measure.instruments import flops_per_item, time_phases, trace_gradients
from dpbench.measure.nccl_log import nccl_transports
from dpbench.measure.nvml import gpu_states
from dpbench.measure.rank_model import RankModel, build_module, build_rank_model
from dpbench.measure.step import BenchmarkStepper
from dpbench.measure.unused import unused_parameters_named
from dpbench.measure.verification import checksum, verify
from dpbench.measure.window import time_steps
from dpbench.records.trial import MemoryPeaks, Mode, RankMeasurement, TrialFacts, Window
from dpbench.rendezvous.process_group import default_group_class, rank_group
from dpbench.specs import TrialSpec


def measure_trial(trial: TrialSpec, prepared: Path | None, rank: int) -> RankMeasurement:
    """Run `trial` as `rank`; `prepared` is the folder of the datasets, None if samples are made.

    The first repetition of a configuration also traces and verifies its gradients and counts
    operations: another repetition would find the same.
    """
    started, is_first = perf_counter(), trial.repetition == 0
    devices = set_devices_and_threads(trial, rank)
    device = devices[0]
    set_tf32(trial.workload.dtype)
    architecture = load_architecture(trial.workload.architecture)
    source = _source(trial, architecture, prepared)
    plan = StepPlan(trial, rank, len(source), device)
    with (
        loading_batches(trial, rank, plan, source, device) as load,
        nccl_transports(trial.backend) as transports,
        rank_group(trial.backend, trial.process_count, device) as ranks,
    ):
        module = build_module(architecture, trial.workload, device)
        initial_checksum = checksum(module)
        model = build_rank_model(module, architecture, trial, rank, device)
        weight = trial.averaging_weight(rank)
        stepper = BenchmarkStepper(model, load, weight, devices, ranks)
        gpu_states(device)  # opens NVML before the windows, whose ends read it
        reset_peak_device_memory(*devices)
        setup_seconds = perf_counter() - started
        with unused_parameters_named(module):
            steps = warm_up(trial, stepper, plan.warmup.steps)
            plan = StepPlan(replace(trial, steps=steps), rank, len(source), device)
            windows, peaks, reduced = time_windows(stepper, plan.timed)
        final_checksum, threads = checksum(module), torch.get_num_threads()
        trace = trace_gradients(stepper, plan.traced.steps) if plan.traced.steps else None
        phases = {segment.mode: time_phases(stepper, segment) for segment in plan.instrumented}
        used_transports = transports()
        group_class = default_group_class(ranks.device)
        norms = sum(isinstance(each, torch.nn.SyncBatchNorm) for each in module.modules())
        del stepper, model, module
        # After the windows, so that the float64 tensors neither add to their peak memory nor warm
        # anything up for them.
        verification = verify(trial, architecture, source, rank, ranks) if is_first else None
    # Counted last; a failure is reported and loses nothing.
    flops = flops_per_item(architecture, source, device) if is_first and rank == 0 else None
    facts = TrialFacts(
        item=architecture.item,
        items_per_sample=items_per_sample(architecture),
        flops_per_item=flops,
        group_class=group_class,
        sync_batch_norms=norms,
        verification=verification,
    )
    return RankMeasurement(
        rank=rank,
        pid=os.getpid(),
        device=str(device),
        windows=windows,
        setup_seconds=setup_seconds,
        peaks=peaks,
        facts=facts if rank == 0 else None,
        reduced_bytes_per_step=reduced,
        comm_init_seconds=ranks.comm_init_seconds,
        transports=used_transports,
        sample_checksum=plan.timed_checksum,
        initial_checksum=initial_checksum,
        final_checksum=final_checksum,
        threads=threads,
        phases={mode: seconds for mode, (seconds, _) in phases.items()},
        replica_phases=phases["timed"][1] if phases else {},
        gradient_trace=trace,
    )


def _source(
    trial: TrialSpec, architecture: Architecture, prepared: Path | None
) -> Dataset | UserDataset:
    """The samples in host memory."""
    workload = trial.workload
    if is_function(workload.dataset):
        return load_user_dataset(workload.dataset, seed=workload.seed)
    if workload.dataset == SYNTHETIC:
        samples = max(trial.global_batch_size, synthetic_samples(architecture))
        return synthetic_dataset(architecture, seed=workload.seed, samples=samples)
    assert prepared is not None
    return Splits.read(prepared_file(prepared, workload.dataset)).train


def warm_up(
    trial: TrialSpec, stepper: BenchmarkStepper, steps: Sequence[Sequence[torch.Tensor]]
) -> int:
    """Take the warm-up steps; returns the number of steps to time, the same on all ranks. If the
    window fills a time, the second half of the warm-up is timed and sets it."""
    untimed = len(steps) // 2 if trial.window_seconds else len(steps)
    for indices in steps[:untimed]:
        stepper.step(indices)
    if untimed == len(steps):
        return trial.steps
    pace = time_steps(stepper.step, steps[untimed:], stepper.devices, stepper.ranks)
    return trial.filling_steps(stepper.ranks.max(median(pace.step_seconds)))


def time_windows(
    stepper: BenchmarkStepper, segments: Sequence[Segment]
) -> tuple[dict[Mode, Window], MemoryPeaks, int | None]:
    """Time the segments, and make the parameters equal on all ranks.

    Returns the window of each mode, the peak of memory until the end of the first segment, and the
    bytes that a step reduced, if they are counted.
    """
    devices, parallel = stepper.devices, stepper.model.parallel
    timed: dict[Mode, list[Window]] = {}
    peaks: MemoryPeaks | None = None
    before = parallel.reduced_bytes()  # unsynced steps add nothing to it
    for steps, mode in segments:
        unsynced = mode == "unsynced"
        # Unsynced steps are undone: replicas must not drift apart.
        with undone(stepper.model, devices) if unsynced else nullcontext():
            step = partial(stepper.step, unsynced=unsynced)
            window = time_steps(step, steps, devices, stepper.ranks)
        timed.setdefault(mode, []).append(window)
        # Training needs no more than the first segment: unsynced steps add copies of the state and
        # gradients beside the buckets.
        peaks = peaks or memory_peaks(*devices)
    after = parallel.reduced_bytes()
    parallel.sync_parameters()
    assert peaks is not None  # a window has a segment
    windows = {mode: Window.of_segments(segments) for mode, segments in timed.items()}
    if before is None or after is None:
        return windows, peaks, None
    return windows, peaks, (after - before) // len(windows["timed"].step_seconds)


@contextmanager
def undone(model: RankModel, devices: Sequence[torch.device]) -> Iterator[None]:
    """A context whose steps leave no trace in parameters, buffers, optimizer, loss scale and random
    state.

    Copies wait in host memory and are written back in place, as the device may have no room for a
    second state of the optimizer.
    """
    states, scaler = model.optimizer.state, model.scaler
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
