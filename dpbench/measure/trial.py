"""One rank's part of one trial, from the process group to the raw measurement."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import torch

from dpbench import architecture as architectures
from dpbench.architecture import Architecture
from dpbench.data import datasets
from dpbench.data.items import Collated, Source, load_items
from dpbench.data.registry import SYNTHETIC, is_function
from dpbench.errors import UsageError
from dpbench.measure.device import settle_on_device
from dpbench.measure.feed import BatchQueue, feeding
from dpbench.measure.flops import flops_per_item
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
    measurement: RankMeasurement | None
    verification: Verification | None = None
    """The proof of gradients, in the first repetition."""
    flops_per_item: float | None = None
    """Operations per item, counted by rank 0 in the first repetition: all have the same number, and
    counting takes 20 ms."""


def measure(
    trial: TrialSpec,
    prepared: Path | None,
    rank: int,
    *,
    traces: Path | None = None,
) -> RankReport:
    """Run `trial` as `rank`.

    The first repetition of a configuration also proves its gradients, takes the instrumented steps
    and counts operations: another repetition would find the same.

    Args:
        prepared: the folder of the dataset, None if synthetic.
        traces: the folder for the timelines of a trial with `trace_steps`.

    Raises:
        UsageError: a trial with `trace_steps` gets no folder.
    """
    started = perf_counter()
    if trial.trace_steps and traces is None:
        raise UsageError(f"{trial.label}: got steps to trace but no folder to write the traces to")
    device = settle_on_device(trial, rank)
    choose_products(trial.workload.dtype)
    architecture = architectures.load(trial.workload.architecture)
    source = _source(trial, architecture, prepared)
    batches = BatchQueue(trial, rank, len(source), device if trial.prefetch is None else HOST)
    verification = None
    with (
        feeding(trial, rank, source, device) as feed,
        rank_group(trial.backend, trial.process_count) as ranks,
    ):
        windows = TrialWindows(trial, rank, architecture, feed, batches, device, ranks)
        measurement = replace(
            windows.measure(setup_started=started),
            comm_init_seconds=ranks.comm_init_seconds,
            start_method=start_method(),
        )
        if traces is not None and trial.trace_steps:
            windows.trace(traces)
        del windows
        if trial.repetition == 0:
            # After the windows, so that the float64 tensors neither add to their peak memory nor
            # warm anything up for them.
            verification = verify(trial, architecture, source, rank, ranks)
    wrong = verification is not None and not verification.passed
    return RankReport(
        item=architecture.item,
        items_per_sample=architectures.items_per_sample(architecture),
        measurement=None if wrong else measurement,
        verification=verification,
        flops_per_item=_counted_flops(trial, rank, architecture, source, device),
    )


def start_method() -> str | None:
    """The method by which multiprocessing started this process; None if it did not."""
    # Private, but each process class keeps its method there.
    return getattr(multiprocessing.current_process(), "_start_method", None)


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


def _counted_flops(
    trial: TrialSpec, rank: int, architecture: Architecture, source: Source, device: torch.device
) -> float | None:
    """The count; None if another trial counts, or the model cannot run the way the count needs.

    A failed count must not lose the measurement; reports say that there is no count.
    """
    if (rank, trial.repetition) != (0, 0):
        return None
    try:
        return flops_per_item(architecture, source, device)
    except Exception as error:
        print(f"floating-point operations were not counted: {error}", file=sys.stderr)
        return None
