"""One rank's part of one trial, from the process group to the raw measurement.

`measure_trial` is the order of a trial: the device, the samples, the process group, the model;
warmup; segments as they train and unsynced ones in turns; then what is slow, and would warm the
windows up: the trace of gradients, the timed phases, the verification of gradients and the count of
operations.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from dpbench.architecture import Architecture, items_per_sample, load_architecture
from dpbench.data.datasets import (
    Dataset,
    UserDataset,
    load_splits,
    load_user_dataset,
    synthetic_dataset,
    synthetic_samples,
)
from dpbench.data.registry import SYNTHETIC, is_function
from dpbench.measure.batches import StepSamples, loading_batches
from dpbench.measure.device import (
    memory_peaks,
    reset_peak_device_memory,
    set_devices_and_threads,
    set_tf32,
)
from dpbench.measure.instruments import (
    PHASE_STEPS,
    TRACED_STEPS,
    flops_per_item,
    time_phases,
    trace_gradients,
)
from dpbench.measure.nccl_log import nccl_transports
from dpbench.measure.nvml import gpu_states
from dpbench.measure.rank_model import build_rank_model
from dpbench.measure.step import BenchmarkStepper
from dpbench.measure.unused import unused_parameters_named
from dpbench.measure.verification import checksum, verify
from dpbench.parallel.agreement import tensors_sha256
from dpbench.records.trial import MemoryPeaks, Mode, RankMeasurement, TrialFacts, Window
from dpbench.rendezvous.process_group import default_group_class, rank_group
from dpbench.specs import Configuration


def measure_trial(
    configuration: Configuration, repetition: int, prepared: Path | None, rank: int
) -> RankMeasurement:
    """Run a trial as `rank`; `prepared` is the folder of the datasets, None if samples are made.

    The first repetition of a configuration also traces and verifies its gradients and counts
    operations: another repetition would find the same.
    """
    started, is_first = perf_counter(), repetition == 0
    devices = set_devices_and_threads(configuration, rank)
    set_tf32(configuration.workload.dtype)
    architecture = load_architecture(configuration.workload.architecture)
    source = _source(configuration, architecture, prepared)
    samples = StepSamples(configuration, rank, len(source), devices[0])
    with (
        loading_batches(configuration, rank, source, devices[0]) as load,
        nccl_transports(configuration.backend) as transports,
        rank_group(configuration.backend, configuration.process_count, devices[0]) as ranks,
    ):
        model = build_rank_model(architecture, configuration, rank, devices[0])
        weight = configuration.averaging_weight(rank)
        stepper = BenchmarkStepper(model, load, weight, devices, ranks)
        measurement = time_windows(configuration, stepper, samples, started)
        trace, phases = None, {}
        if configuration.traces_gradients and is_first:
            # A step takes one micro-batch, whatever the trial accumulates: the simulation combines
            # micro-steps itself.
            trace = trace_gradients(stepper, samples.deal(TRACED_STEPS, micro_steps=1))
        if configuration.is_instrumented:
            for mode in measurement.windows:
                phases[mode] = time_phases(stepper, samples.deal(PHASE_STEPS), mode)
        used_transports, group_class = transports(), default_group_class(ranks.device)
        norms = sum(isinstance(each, torch.nn.SyncBatchNorm) for each in model.module.modules())
        del stepper, model
        # After the windows, so that the float64 tensors neither add to their peak memory nor warm
        # anything up for them.
        verification = (
            verify(configuration, architecture, source, rank, ranks) if is_first else None
        )
    facts = None
    if rank == 0:
        facts = TrialFacts(
            item=architecture.item,
            items_per_sample=items_per_sample(architecture),
            # Counted last; a failure is reported and loses nothing.
            flops_per_item=flops_per_item(architecture, source, devices[0]) if is_first else None,
            group_class=group_class,
            sync_batch_norms=norms,
            verification=verification,
        )
    return replace(
        measurement,
        facts=facts,
        transports=used_transports,
        gradient_trace=trace,
        phases={mode: seconds for mode, (seconds, _) in phases.items()},
        replica_phases=phases["timed"][1] if phases else {},
    )


def _source(
    configuration: Configuration, architecture: Architecture, prepared: Path | None
) -> Dataset | UserDataset:
    """The samples in host memory."""
    workload = configuration.workload
    if is_function(workload.dataset):
        return load_user_dataset(workload.dataset, seed=workload.seed)
    if workload.dataset == SYNTHETIC:
        samples = max(configuration.global_batch_size, synthetic_samples(architecture))
        return synthetic_dataset(architecture, seed=workload.seed, samples=samples)
    return load_splits(workload, prepared, architecture).train


def time_windows(
    configuration: Configuration, stepper: BenchmarkStepper, samples: StepSamples, started: float
) -> RankMeasurement:
    """Take the warm-up steps and time the segments, and make the parameters equal on all ranks;
    `started` is when this rank did."""
    devices, ranks = stepper.devices, stepper.ranks
    module, parallel = stepper.model.module, stepper.model.parallel
    initial_checksum = checksum(module)
    gpu_states(devices[0])  # opens NVML before the windows, whose ends read it
    reset_peak_device_memory(*devices)
    setup_seconds = perf_counter() - started
    timed: dict[Mode, list[Window]] = {}
    peaks: MemoryPeaks | None = None
    with unused_parameters_named(module):
        segments = [*samples.segments(take_warmup_steps(configuration, stepper, samples))]
        before = parallel.reduced_bytes()  # unsynced steps add nothing to it
        for mode, steps in segments:
            timed.setdefault(mode, []).append(stepper.time(steps, mode))
            # Training needs no more than the first segment: unsynced steps add copies of the state
            # and gradients beside the buckets.
            peaks = peaks or memory_peaks(*devices)
        after = parallel.reduced_bytes()
        parallel.sync_parameters()
    assert peaks is not None  # a window has a segment
    taken = [step for mode, steps in segments if mode == "timed" for step in steps]
    reduced = None if before is None or after is None else (after - before) // len(taken)
    return RankMeasurement(
        rank=ranks.rank,
        pid=os.getpid(),
        device=str(devices[0]),
        windows={mode: Window.of_segments(parts) for mode, parts in timed.items()},
        setup_seconds=setup_seconds,
        peaks=peaks,
        reduced_bytes_per_step=reduced,
        comm_init_seconds=ranks.comm_init_seconds,
        sample_checksum=tensors_sha256(("", indices) for step in taken for indices in step),
        initial_checksum=initial_checksum,
        final_checksum=checksum(module),
        threads=torch.get_num_threads(),
    )


def take_warmup_steps(
    configuration: Configuration, stepper: BenchmarkStepper, samples: StepSamples
) -> int:
    """Take the warm-up steps; returns the number of steps to time, the same on all ranks. If the
    window fills a time, the second half of the warm-up is timed and sets it."""
    timed = -(-configuration.warmup // 2) if configuration.window_seconds else 0
    for indices in samples.deal(configuration.warmup - timed):
        stepper.step(indices)
    if not timed:
        return configuration.steps
    pace = stepper.time(samples.deal(timed))
    return configuration.filling_steps(stepper.ranks.max(median(pace.step_seconds)))
