"""The samples that a rank trains on, step by step, selected shortly before a window needs them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import torch

from dpbench.data.sharding import GlobalBatchSampler
from dpbench.specs import TrialSpec

StepBatches = list[torch.Tensor]
"""The sample indices of each micro-step of one step, int64 (samples,)."""


def micro_batches(trial: TrialSpec, rank: int, dataset_size: int) -> Iterator[torch.Tensor]:
    """The sample indices of every micro-step of one rank, in host memory, without end."""
    first, size = trial.process_shard(rank)
    sampler = GlobalBatchSampler(
        dataset_size,
        trial.global_batch_size,
        first=first,
        count=size,
        seed=trial.workload.seed,
    )
    return (indices for step in count() for indices in sampler.batches(step, 1))


class BatchQueue:
    """The batches of one rank in the order of the sampler, each taken once."""

    def __init__(
        self, trial: TrialSpec, rank: int, dataset_size: int, device: torch.device
    ) -> None:
        """`device` holds the samples."""
        self._stream = micro_batches(trial, rank, dataset_size)
        self._per_step = trial.accumulation_steps
        self._device = device

    def take(self, steps: int) -> list[StepBatches]:
        """The batches of the next `steps` steps. It copies to the device: not for timed windows."""
        return [self.take_micro(self._per_step) for _ in range(steps)]

    def take_micro(self, count: int) -> StepBatches:
        """The next `count` micro-batches, which need not be whole steps."""
        return [indices.to(self._device) for indices in islice(self._stream, count)]
