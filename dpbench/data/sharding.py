"""The samples that each rank trains on.

A seed and an epoch give an order of all samples (`sample_indices`). Each rank takes a range of
positions in it: of every micro-step in a training (`EpochPlan`) and in a trial
(`measure.batches.StepSamples`), of the whole epoch from a BalancedSampler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch.utils.data import Sampler

from dpbench.data.batch import Batch
from dpbench.data.datasets import Dataset
from dpbench.errors import DataError
from dpbench.specs.parallel import averaging_weight
from dpbench.specs.training import TrainingSpec


def split_by_shares(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Numbers of samples in proportion to `shares`, of which there are at most `total`: each at
    least one, together exactly `total`.

    By the largest remainder: everybody gets the whole part of its due, and what is left goes to
    those who miss most, the earlier ones first. With equal shares the sizes differ by one at most.
    """
    whole = sum(shares)
    due = [total * share / whole for share in shares]
    sizes = [max(1, math.floor(part)) for part in due]
    missing = sorted(range(len(due)), key=lambda i: sizes[i] - due[i])
    for chosen in missing[: max(0, total - sum(sizes))]:
        sizes[chosen] += 1
    while sum(sizes) > total:  # some got one that is more than their due
        above = (i for i, size in enumerate(sizes) if size > 1)
        sizes[max(above, key=lambda i: sizes[i] - due[i])] -= 1
    return tuple(sizes)


def rank_range(positions: range, shares: Sequence[float], rank: int) -> range:
    """The positions of one rank, of those that all divide.

    The ranges are contiguous and in the order of the ranks, and their sizes follow the shares: with
    equal shares they differ by one at most, and earlier ranks have more.
    """
    sizes = split_by_shares(len(positions), shares)
    first = sum(sizes[:rank])
    return positions[first : first + sizes[rank]]


def sample_indices(
    positions: range, samples: int, *, seed: int | None, epoch: int = 0
) -> torch.Tensor:
    """The sample indices at some positions, counted from the start of `epoch`, in the shuffled
    order of all samples, one epoch after the other without end; int64 (n,).

    The order is the same on every rank and on every machine, and independent of torch's random
    state. Without a seed it is that of the dataset.
    """
    begin, end = positions.start, positions.stop
    pieces = []
    while begin < end:
        later, first = divmod(begin, samples)
        count = min(end - begin, samples - first)
        pieces.append(_epoch_order(samples, seed, epoch + later)[first : first + count])
        begin += count
    return torch.cat(pieces)


@lru_cache(maxsize=2)  # a step may end one epoch and begin the next
def _epoch_order(samples: int, seed: int | None, epoch: int) -> torch.Tensor:
    order = np.arange(samples, dtype=np.int64)
    if seed is not None:
        order = np.random.default_rng((seed, epoch)).permutation(order)
    return torch.from_numpy(order)


class BalancedSampler(Sampler[int]):
    """The sample indices of one rank, a contiguous part of each epoch's order.

    Unlike torch's DistributedSampler it neither repeats nor drops a sample: the parts of all ranks
    are disjoint, together the dataset, and their sizes differ by one at most, the earlier ranks
    having more. So ranks can have different numbers of batches: train within `join` of
    DistributedDataParallel. (`dpbench train` divides every global batch instead.)

    Arguments:
        dataset_size: number of samples, at least `world_size`.
        rank, world_size: which part, of how many.
        shuffle: use a new permutation of the whole dataset for every epoch; otherwise keep the
            order.
        seed: seed of the permutations, the same on every rank.

    Raises:
        ValueError: an argument is invalid; the message has its value.
    """

    def __init__(
        self, dataset_size: int, *, rank: int, world_size: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        if not 0 <= rank < world_size <= dataset_size or seed < 0:
            raise ValueError(
                f"got {dataset_size=}, {rank=}, {world_size=}, {seed=}; expected a rank from 0 to "
                "world_size - 1, a sample for each rank, and a seed of 0 or more"
            )
        self._size, self._seed, self._epoch = dataset_size, seed if shuffle else None, 0
        self._positions = rank_range(range(dataset_size), (1.0,) * world_size, rank)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration go through epoch `epoch`, from 0; call it on every rank."""
        if epoch < 0:
            raise ValueError(f"got epoch {epoch}, expected at least 0")
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        taken = sample_indices(self._positions, self._size, seed=self._seed, epoch=self._epoch)
        return iter(taken.tolist())

    def __len__(self) -> int:
        return len(self._positions)


class EpochPlan:
    """The samples of every rank in every step of a training's epochs; a pure function of the spec,
    the number of samples and the shares.

    An epoch is divided into micro-steps of the global batch size; `accumulate` of them make
    one optimizer step. A rest with fewer samples than replicas joins the last micro-step.
    """

    def __init__(self, spec: TrainingSpec, samples: int, *, shares: Sequence[float] = ()) -> None:
        """`shares` are the relative shares of the ranks in every micro-step; () means equal.

        Raises DataError: there are too few samples for one micro-step, or "drop" would leave no
        step.
        """
        self._samples, self._seed = samples, spec.workload.seed
        self._accumulation = spec.accumulate
        self._shares = tuple(shares) or (1.0,) * spec.process_count
        full, rest = divmod(samples, spec.global_batch_size)
        count = full + (rest >= spec.group_size)
        firsts = [step * spec.global_batch_size for step in range(count)]
        self._micro_steps = [*map(range, firsts, [*firsts[1:], samples])]
        """The positions of each micro-step in the order of the epoch."""
        dropped = count % self._accumulation if spec.last_batch == "drop" else 0
        self.steps_per_epoch = -(-(count - dropped) // self._accumulation)
        if not self.steps_per_epoch:
            raise DataError(
                f"got {samples} training samples at group size {spec.group_size}: {count} "
                f"micro-steps an epoch, of {self._accumulation} in a step; take more samples, "
                "fewer replicas or accumulation steps, a smaller batch, or keep the last step"
            )

    def samples_before(self, step: int, rank: int | None = None) -> int:
        """Number of samples in the steps of an epoch before this one, over all ranks or of one;
        before step `steps_per_epoch`: in the whole epoch."""
        count = min(step * self._accumulation, len(self._micro_steps))
        if count == 0:
            return 0
        first, last = self._micro_steps[0], self._micro_steps[count - 1]
        if rank is None:
            return last.stop
        size, last_size = (len(rank_range(part, self._shares, rank)) for part in (first, last))
        return (count - 1) * size + last_size  # all are equal except for the last

    def samples_in(self, step: int) -> int:
        """Number of samples in a step of an epoch, over all ranks."""
        return self.samples_before(step + 1) - self.samples_before(step)

    def step(self, epoch: int, number: int, rank: int) -> list[torch.Tensor]:
        """The sample indices of `rank` in each micro-step of step `number` of `epoch`, all
        counted from 0; int64 (samples,), on the CPU."""
        first = number * self._accumulation
        micro_steps = self._micro_steps[first : first + self._accumulation]
        ranges = (rank_range(micro_step, self._shares, rank) for micro_step in micro_steps)
        return [sample_indices(r, self._samples, seed=self._seed, epoch=epoch) for r in ranges]

    def batches(
        self, dataset: Dataset, epoch: int, first_step: int, rank: int
    ) -> Iterator[list[Batch]]:
        """The micro-batches of `rank` in each step of `epoch` from `first_step` on, where the
        samples of `dataset` are."""
        for number in range(first_step, self.steps_per_epoch):
            samples = self.samples_in(number)
            yield [
                Batch(
                    *dataset.select(indices),
                    weight=averaging_weight(len(indices), len(self._shares), samples),
                    sample_count=len(indices),
                )
                for indices in self.step(epoch, number, rank)
            ]
