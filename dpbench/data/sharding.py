"""Which samples a rank trains on: the same global batches for every group size.

The stream of samples is an endless row of epochs, each a permutation of the dataset of its own.
Step k takes positions [k·B, (k+1)·B) of the stream as its global batch, across the seam of two
epochs if need be, so that no sample is ever dropped. A rank takes a contiguous part of every
global batch. With the same global batch size, 1 replica and 8 replicas thus consume the same
samples in the same order, and their losses can be compared.
"""

from __future__ import annotations

import torch

from dpbench.data.order import permutation
from dpbench.errors import DataError, UsageError


class GlobalBatchSampler:
    """The sample indices of one rank: `count` from `first` on, of every global batch."""

    def __init__(
        self, dataset_size: int, global_batch_size: int, *, first: int, count: int, seed: int
    ) -> None:
        """Raises UsageError for a size that cannot be, DataError for too small a dataset."""
        _at_least("dataset size", dataset_size, 1)
        _at_least("global batch size", global_batch_size, 1)
        _at_least("first sample of the rank", first, 0)
        _at_least("samples per rank", count, 1)
        _at_least("seed", seed, 0)
        if first + count > global_batch_size:
            raise UsageError(
                f"shard: got samples {first} to {first + count} of a global batch; "
                f"expected an end of at most {global_batch_size}, the global batch size"
            )
        if global_batch_size > dataset_size:
            raise DataError(
                f"global batch size {global_batch_size} is larger than the dataset of "
                f"{dataset_size} samples; take a smaller batch, or --data synthetic"
            )
        self._dataset_size = dataset_size
        self._global_batch_size = global_batch_size
        self._first = first
        self._count = count
        self._seed = seed
        self._epoch = 0
        self._permutation = self._permute(0)

    def batches(self, start: int, steps: int) -> list[torch.Tensor]:
        """The indices of steps `start` to `start + steps`: int64 tensors of (count,)."""
        _at_least("first step", start, 0)
        _at_least("steps", steps, 0)
        return [self._batch(step) for step in range(start, start + steps)]

    def _batch(self, step: int) -> torch.Tensor:
        position = step * self._global_batch_size + self._first
        end = position + self._count
        pieces = []
        while position < end:
            epoch, offset = divmod(position, self._dataset_size)
            taken = min(end - position, self._dataset_size - offset)
            pieces.append(self._indices_of(epoch)[offset : offset + taken])
            position += taken
        return torch.cat(pieces)

    def _indices_of(self, epoch: int) -> torch.Tensor:
        if epoch != self._epoch:
            self._epoch, self._permutation = epoch, self._permute(epoch)
        return self._permutation

    def _permute(self, epoch: int) -> torch.Tensor:
        return permutation(self._dataset_size, seed=self._seed, epoch=epoch)


def _at_least(what: str, got: int, least: int) -> None:
    if got < least:
        raise UsageError(f"{what}: got {got}, expected at least {least}")
