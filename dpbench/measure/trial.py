"""One rank's part of one trial, from the process group to the raw measurement."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dpbench import architecture as architectures
from dpbench.architecture import Architecture, items_per_sample
from dpbench.data import datasets
from dpbench.data.batch import call
from dpbench.data.datasets import Dataset
from dpbench.data.items import Collated, Source, load_items
from dpbench.data.registry import SYNTHETIC, is_function
from dpbench.errors import UsageError
from dpbench.measure.allocator import LEFT_ALONE, keep_freed_memory
from dpbench.measure.device import settle_on_device
from dpbench.measure.feed import BatchQueue, feeding
from dpbench.measure.precision import choose_products
from dpbench.measure.rank_group import rank_group
from dpbench.measure.trial_windows import TrialWindows
from dpbench.measure.verification import verify
from dpbench.records.trial import RankMeasurement, Verification
from dpbench.specs import TrialSpec

HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReport:
    """The report of a rank; without a measurement if its gradients were wrong."""

    item: str
    items_per_sample: int
    verification: Verification
    measurement: RankMeasurement | None
    flops_per_item: float | None = None
    """Operations per item, counted by rank 0 in repetition 0: all have the same number, and
    counting takes 20 ms."""


def measure(
    trial: TrialSpec,
    prepared: Path | None,
    rank: int,
    *,
    traces: Path | None = None,
) -> RankReport:
    """Run `trial` as `rank`.

    `prepared` is the folder of the dataset, None if synthetic; `traces` is the folder for the
    timelines of a trial with `trace_steps`. Raises UsageError if a trial with `trace_steps` gets no
    folder.
    """
    started = perf_counter()
    if trial.trace_steps and traces is None:
        raise UsageError(f"{trial.label}: got steps to trace but no folder to write the traces to")
    allocator = keep_freed_memory() if trial.keeps_memory else LEFT_ALONE
    device = settle_on_device(trial, rank)
    choose_products(trial.workload.dtype)
    architecture = architectures.load(trial.workload.architecture)
    source = _source(trial, architecture, prepared)
    batches = BatchQueue(trial, rank, len(source), device if trial.prefetch is None else HOST)
    with (
        feeding(trial, rank, source, device) as feed,
        rank_group(trial.backend, trial.process_count) as ranks,
    ):
        windows = TrialWindows(trial, rank, architecture, feed, batches, device, ranks)
        measurement = replace(
            windows.measure(setup_started=started),
            allocator=allocator,
            comm_init_seconds=ranks.comm_init_seconds,
            start_method=start_method(),
        )
        if traces is not None and trial.trace_steps:
            windows.trace(traces)
        del windows
        # After the windows, so that the float64 tensors neither add to their peak memory nor
        # warm anything up for them. No speed is returned without the proof.
        verification = verify(trial, architecture, source, rank, ranks)
    proved = measurement if verification.passed else None
    flops = _flops_per_item(trial, rank, architecture, source, device)
    return RankReport(
        item=architecture.item,
        items_per_sample=architectures.items_per_sample(architecture),
        verification=verification,
        measurement=proved,
        flops_per_item=flops,
    )


def start_method() -> str | None:
    """The method by which multiprocessing started this process; None if it did not."""
    # Private, but each process class keeps its method there.
    return getattr(multiprocessing.current_process(), "_start_method", None)


def _flops_per_item(
    trial: TrialSpec, rank: int, architecture: Architecture, source: Source, device: torch.device
) -> float | None:
    """The count; None if another trial counts, or the model cannot run the way the count needs.

    A failed count must not lose the measurement; reports say that there is no count.
    """
    if (rank, trial.repetition) != (0, 0):
        return None
    try:
        inputs, targets = source.take(torch.arange(min(SAMPLES, len(source))))
        few = Dataset(inputs=inputs, targets=targets)
        return count_flops_per_item(architecture, few, device)
    except Exception as error:
        print(f"floating-point operations were not counted: {error}", file=sys.stderr)
        return None


def _source(trial: TrialSpec, architecture: Architecture, prepared: Path | None) -> Source:
    """The samples in host memory."""
    workload = trial.workload
    if is_function(workload.dataset):
        return Collated(load_items(workload.dataset, seed=workload.seed))
    samples = trial.global_batch_size
    if workload.dataset == SYNTHETIC:
        samples = max(samples, datasets.synthetic_samples(architecture))
    return datasets.load(
        workload.dataset, prepared, architecture, seed=workload.seed, samples=samples
    )


SAMPLES = 2


def count_flops_per_item(
    architecture: Architecture, dataset: Dataset, device: torch.device
) -> float:
    """Count the operations of forward and backward of the plain model for one item, 2 per
    multiply-add.

    Matrix products, convolutions and attention count, as torch's FlopCounterMode sees them run. The
    gradient of the model's input, which a step does not compute, is left out; attention is split
    into its products, because the counter does not know the CPU's fused kernel.
    """
    samples = min(SAMPLES, len(dataset))
    batch = dataset.part(0, samples)
    try:  # on meta tensors: computing a large model takes seconds and gigabytes
        operations = _count(architecture, batch, torch.device("meta"))
    except Exception:  # a model that reads values needs real tensors
        operations = _count(architecture, batch, device)
    return operations / (samples * items_per_sample(architecture))


def _count(architecture: Architecture, batch: Dataset, device: torch.device) -> int:
    with device:
        module = architecture.build_model().to(device).eval()  # batch norm accepts one item
    inputs, targets = batch.to(device).take(slice(None))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        architecture.loss(call(module, inputs), targets).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())
