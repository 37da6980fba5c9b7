"""Assigns samples to ranks: the global batches are the same for every group size.

The stream of samples is an endless sequence of epochs, each a new permutation of the dataset. Step
k takes positions [k·B, (k+1)·B) of the stream as its global batch, across the boundary of two
epochs if necessary, so that no sample is ever dropped. A rank takes a contiguous part of every
global batch. With the same global batch size, 1 replica and 8 replicas thus consume the same
samples in the same order, and their losses can be compared.

In a loop of the user's own, `BalancedSampler` divides each epoch among the ranks instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import Sampler

from dpbench import units
from dpbench.errors import DataError, UsageError
from dpbench.specs import shares as sharing


def permutation(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """The indices 0 to `samples` - 1, int64 (samples,), shuffled anew for every epoch.

    It is the same in every process and on every machine, and independent of torch's random state.
    """
    generator = np.random.default_rng((seed, epoch))
    return torch.from_numpy(generator.permutation(np.arange(samples, dtype=np.int64)))


class GlobalBatchSampler:
    """The sample indices of one rank: `count` indices from `first` on in every global batch."""

    def __init__(
        self, dataset_size: int, global_batch_size: int, *, first: int, count: int, seed: int
    ) -> None:
        """Raises UsageError for an impossible size, DataError if the dataset is too small."""
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


class BalancedSampler(Sampler[int]):
    """The sample indices of one rank, a contiguous part of each epoch's order.

    Unlike torch's DistributedSampler it neither repeats nor drops a sample: the parts of all ranks
    are disjoint, together the dataset, and with equal shares their sizes differ by one at most,
    the earlier ranks having more. So ranks can have different numbers of batches: train within
    `join` of DistributedDataParallel. (`dpbench train` divides every global batch instead.)

    Arguments:
        dataset_size: number of samples, at least `world_size`.
        rank, world_size: which part, of how many.
        shares: relative shares of the ranks, e.g. (2.0, 1.0), which `shares_by_speed` computes from
            measured speeds; None means equal.
        shuffle: use a new permutation of the whole dataset for every epoch; otherwise keep the
            order.
        seed: seed of the permutations, the same on every rank.

    Raises:
        UsageError: an argument is invalid; the message has its value.
    """

    def __init__(
        self,
        dataset_size: int,
        *,
        rank: int,
        world_size: int,
        shares: Sequence[float] | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        _check_rank(rank, world_size, seed)
        shares = (1.0,) * world_size if shares is None else shares
        if len(shares) != world_size:
            raise UsageError(
                f"shares: got {len(shares)} for {units.counted(world_size, 'rank')}; expected one "
                "for each"
            )
        sizes = sharing.split(dataset_size, shares)
        self._dataset_size = dataset_size
        self._first, self._count = sum(sizes[:rank]), sizes[rank]
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration go through epoch `epoch`, from 0; call it on every rank."""
        if epoch < 0:
            raise UsageError(f"epoch: got {epoch}, expected at least 0")
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self._shuffle:
            order = permutation(self._dataset_size, seed=self._seed, epoch=self._epoch)
        else:
            order = torch.arange(self._dataset_size)
        return iter(order[self._first : self._first + self._count].tolist())

    def __len__(self) -> int:
        return self._count


def _check_rank(rank: int, world_size: int, seed: int) -> None:
    if world_size < 1:
        raise UsageError(f"world_size: got {world_size}, expected at least 1")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank: got {rank}, expected 0 to {world_size - 1}")
    if seed < 0:
        raise UsageError(f"seed: got {seed}, expected at least 0")
