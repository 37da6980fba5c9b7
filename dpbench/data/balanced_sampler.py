"""A sampler for torch's DataLoader: every sample on exactly one rank, equally or by shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from dpbench import shares as sharing
from dpbench import units
from dpbench.data.order import permutation
from dpbench.errors import UsageError


class BalancedSampler(Sampler[int]):
    """The sample indices of one rank, a contiguous part of each epoch's order.

    Unlike torch's DistributedSampler it neither repeats nor drops a sample: the parts of all ranks
    are disjoint, together the dataset, and with equal shares their sizes differ by one at most,
    the earlier ranks having more. So ranks can differ in their number of batches: train within
    `join` of DistributedDataParallel. (`dpbench train` divides every global batch instead.)

    Arguments:
        dataset_size: number of samples, at least `world_size`.
        rank, world_size: which part, of how many.
        shares: of the ranks in proportion, e.g. (2.0, 1.0), which `shares_by_speed` makes from
            measured speeds; None: equal.
        shuffle: a new permutation of the whole dataset for every epoch; else in order.
        seed: of the permutations, the same on every rank.

    Raises:
        UsageError: an argument that cannot be, with its value.
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
        _check(rank, world_size, seed)
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


def _check(rank: int, world_size: int, seed: int) -> None:
    if world_size < 1:
        raise UsageError(f"world_size: got {world_size}, expected at least 1")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank: got {rank}, expected 0 to {world_size - 1}")
    if seed < 0:
        raise UsageError(f"seed: got {seed}, expected at least 0")
