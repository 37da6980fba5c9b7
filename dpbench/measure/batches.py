"""The supply of a trial's steps with samples, as set by `--prefetch` and `--data-workers`.

Samples are on the device; or each step takes its own from host memory; or a thread or worker
processes load them ahead, as one stream in the sampler's order, through all windows. A step gets
the same samples in every case.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice

import torch

from dpbench.data.batch import Samples
from dpbench.data.datasets import Dataset
from dpbench.data.loading import DeviceCopy, Prefetcher, loaded_by_workers
from dpbench.data.sharding import SampleOrder
from dpbench.data.user_dataset import SampleSource
from dpbench.errors import DataError
from dpbench.measure.step import LoadSamples, StepIndices
from dpbench.measure.window import segment_sizes
from dpbench.specs import TrialSpec


def micro_step_indices(trial: TrialSpec, rank: int, dataset_size: int) -> Iterator[torch.Tensor]:
    """The sample indices of every micro-step of one rank, in host memory, without end; int64
    (samples,).

    Micro-steps cross the end of an epoch, so that all have the same size. Raises DataError if the
    dataset is smaller than a global batch.
    """
    global_batch_size, part = trial.global_batch_size, trial.sample_range(rank)
    if global_batch_size > dataset_size:
        raise DataError(
            f"global batch size {global_batch_size} is larger than the dataset of {dataset_size} "
            "samples; take a smaller batch, or --data synthetic"
        )
    order = SampleOrder(dataset_size, seed=trial.workload.seed)
    begins = itertools.count(0, global_batch_size)
    return (order.indices(range(begin + part.start, begin + part.stop)) for begin in begins)


class StepSampler:
    """The sample indices of one rank's steps, on the device that holds the samples."""

    def __init__(
        self, trial: TrialSpec, rank: int, dataset_size: int, device: torch.device
    ) -> None:
        self._micro_steps = micro_step_indices(trial, rank, dataset_size)
        self._per_step = trial.accumulation_steps
        self._device = device

    def steps(self, count: int) -> list[StepIndices]:
        """The indices of the next `count` steps. It copies to the device: not for timed windows."""
        return [self.micro_steps(self._per_step) for _ in range(count)]

    def micro_steps(self, count: int) -> list[torch.Tensor]:
        """The indices of the next `count` micro-steps, which need not be whole steps."""
        return [indices.to(self._device) for indices in islice(self._micro_steps, count)]


def batches_in_step_order(trial: TrialSpec, rank: int, dataset_size: int) -> Iterator[torch.Tensor]:
    """The indices in the order of the steps: where a segment of the timed window has a twin without
    synchronization, both take the same samples."""
    micro_steps = micro_step_indices(trial, rank, dataset_size)
    yield from islice(micro_steps, trial.warmup_steps * trial.accumulation_steps)
    for steps in segment_sizes(trial.timed_steps):
        segment = list(islice(micro_steps, steps * trial.accumulation_steps))
        yield from segment
        if trial.has_unsynced_window:
            yield from segment
    yield from micro_steps


SEEDS_PER_RANK = 2**32
"""Difference between the seeds of two ranks' workers, so that no two passes share one."""


@contextmanager
def loading_batches(
    trial: TrialSpec, rank: int, source: SampleSource, device: torch.device
) -> Iterator[LoadSamples]:
    """The samples of one rank, from `source` in host memory; nothing of it keeps running after the
    context. Steps have to keep the order of `batches_in_step_order`, in which samples are loaded
    ahead.

    Worker processes are forked here, so enter it before joining the process group.
    """
    if trial.prefetch is None:
        assert isinstance(source, Dataset)
        yield source.to(device).select
        return
    if trial.prefetch == 0:
        copy = DeviceCopy(device)
        yield lambda indices: copy.finish(*copy.start(source.select(indices)))
        return
    stream, depth = batches_in_step_order(trial, rank, len(source)), trial.prefetch
    with ExitStack() as stack:
        loaded: Iterator[tuple[Samples, Samples]] = map(source.select, stream)
        if trial.data_workers:
            by_workers = loaded_by_workers(
                source,
                stream,
                workers=trial.data_workers,
                prefetch=trial.prefetch,
                seed=trial.workload.seed + rank * SEEDS_PER_RANK,
            )
            loaded = stack.enter_context(by_workers)
            # Workers already load ahead; for CUDA a copy still has to run beside the step.
            depth = 1 if device.type == "cuda" else 0
        ahead = Prefetcher(loaded, depth * trial.accumulation_steps, device)
        batches = stack.enter_context(closing(ahead))
        yield lambda indices: next(batches)
