"""The samples that each rank trains on.

A seed and an epoch give an order of all samples (`sample_indices`). Each rank takes a range of
positions in it: of every micro-step in a training (`EpochPlan`) and in a trial
(`measure.batches.StepSamples`), of the whole epoch from a BalancedSampler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch.utils.data import Sampler

from dpbench.data.batch import Batch
from dpbench.data.datasets import Dataset
from dpbench.errors import UsageError
from dpbench.specs.parallel import averaging_weight, rank_range, split_by_shares
from dpbench.specs.training import TrainingSpec


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

        Raises UsageError: there are too few samples for one micro-step, or "drop" would leave no
        step.
        """
        self._samples, self._seed = samples, spec.workload.seed
        self._shares = tuple(shares) or (1.0,) * spec.process_count
        full, rest = divmod(samples, spec.global_batch_size)
        count = full + (rest >= spec.group_size)
        firsts = [number * spec.global_batch_size for number in range(count)]
        parts = [*map(range, firsts, [*firsts[1:], samples])]
        dropped = count % spec.accumulate if spec.last_batch == "drop" else 0
        begins = range(0, count - dropped, spec.accumulate)
        self._steps = [parts[begin : begin + spec.accumulate] for begin in begins]
        """The positions of each step's micro-steps in the order of the epoch."""
        if not self._steps:
            raise UsageError(
                f"got {samples} training samples at group size {spec.group_size}: {count} "
                f"micro-steps an epoch, of {spec.accumulate} in a step; take more samples, "
                "fewer replicas or accumulation steps, a smaller batch, or keep the last step"
            )
        self.steps_per_epoch = len(self._steps)
        self.samples_per_epoch = self._steps[-1][-1].stop

    def samples_before(self, step: int) -> int:
        """Number of samples of all ranks before a step, counted from 0 over all epochs."""
        epochs, number = divmod(step, self.steps_per_epoch)
        return epochs * self.samples_per_epoch + self._steps[number][0].start

    def samples_of(self, rank: int, steps: int) -> int:
        """Number of samples of one rank in the first steps of an epoch."""
        sizes = Counter(len(part) for step in self._steps[:steps] for part in step)
        return sum(n * split_by_shares(size, self._shares)[rank] for size, n in sizes.items())

    def step(self, epoch: int, number: int, rank: int) -> list[torch.Tensor]:
        """The sample indices of `rank` in each micro-step of step `number` of `epoch`, all
        counted from 0; int64 (samples,), on the CPU."""
        ranges = (rank_range(part, self._shares, rank) for part in self._steps[number])
        return [sample_indices(r, self._samples, seed=self._seed, epoch=epoch) for r in ranges]

    def batches(
        self, dataset: Dataset, epoch: int, first_step: int, rank: int
    ) -> Iterator[list[Batch]]:
        """The micro-batches of `rank` in each step of `epoch` from `first_step` on, where the
        samples of `dataset` are."""
        for number in range(first_step, self.steps_per_epoch):
            samples = sum(map(len, self._steps[number]))
            yield [
                Batch(
                    *dataset.select(indices),
                    weight=averaging_weight(len(indices), len(self._shares), samples),
                    sample_count=len(indices),
                )
                for indices in self.step(epoch, number, rank)
            ]
