"""Which samples a rank trains on, step by step, made shortly before a window needs them."""

from __future__ import annotations

import torch

from dpbench.data.sharding import GlobalBatchSampler
from dpbench.specs import TrialSpec

StepBatches = list[torch.Tensor]
"""The sample indices of each micro-step of one step, int64 (samples,), on the rank's device."""


class BatchQueue:
    """The batches of one rank in the order of the sampler, each taken once."""

    def __init__(
        self, trial: TrialSpec, rank: int, dataset_size: int, device: torch.device
    ) -> None:
        first, count = trial.process_shard(rank)
        self._sampler = GlobalBatchSampler(
            dataset_size,
            trial.global_batch_size,
            first=first,
            count=count,
            seed=trial.workload.seed,
        )
        self._per_step = trial.accumulation_steps
        self._device = device
        self._taken = 0

    def take(self, steps: int) -> list[StepBatches]:
        """The batches of the next `steps` steps. Copies to the device: not for timed windows."""
        count = steps * self._per_step
        flat = [i.to(self._device) for i in self._sampler.batches(self._taken, count)]
        self._taken += count
        return [flat[i : i + self._per_step] for i in range(0, count, self._per_step)]
