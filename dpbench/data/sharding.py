"""The samples that a process trains on: its share of each batch, every sample once an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Sampler

from dpbench import units
from dpbench.errors import DataError, UsageError
from dpbench.specs import shares as sharing
from dpbench.specs.training import TrainingSpec


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


def _within(what: str, got: int, count: int) -> None:
    if not 0 <= got < count:
        raise UsageError(f"{what}: got {got}, expected 0 to {count - 1}")


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
        _at_least("world_size", world_size, 1)
        _within("rank", rank, world_size)
        _at_least("seed", seed, 0)
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
        _at_least("epoch", epoch, 0)
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self._shuffle:
            order = permutation(self._dataset_size, seed=self._seed, epoch=self._epoch)
        else:
            order = torch.arange(self._dataset_size)
        return iter(order[self._first : self._first + self._count].tolist())

    def __len__(self) -> int:
        return self._count


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MicroBatch:
    """The part of one micro-step that one process trains on."""

    indices: torch.Tensor
    """Indices of the samples, int64 (samples,), on the CPU."""
    weight: float
    """Weight n·P/N: n samples here, N in the window over all processes, P processes. The mean over
    processes of Σ weight × mean loss is the mean loss of the window, and likewise for the
    gradients."""


class EpochPlan:
    """The micro-batches of all epochs; a pure function of the spec, the samples and the shares."""

    def __init__(
        self, spec: TrainingSpec, samples: int, *, shares: Sequence[float] | None = None
    ) -> None:
        """`shares` are the relative shares of the processes in every micro-step; None means equal.

        Raises:
            UsageError: a size is below 1, or the shares do not fit the processes.
            DataError: there are too few samples for one micro-step, or "drop" would leave no
                window.
        """
        _at_least("samples", samples, 1)
        _at_least("batch size", spec.batch_size, 1)
        _at_least("group size", spec.group_size, 1)
        _at_least("accumulation steps", spec.accumulation_steps, 1)
        _at_least("seed", spec.workload.seed, 0)
        self._samples = samples
        self._seed = spec.workload.seed
        self._batch = spec.global_batch_size
        self._accumulation = spec.accumulation_steps
        self._shares = _shares_of(spec.process_count, shares)
        self._micro_steps = _micro_steps(samples, spec)
        self._steps = _windows(self._micro_steps, spec)
        self._order: tuple[int, torch.Tensor] = (0, self._permute(0))

    @property
    def steps(self) -> int:
        """Number of windows, and so of optimizer steps, in an epoch."""
        return self._steps

    @property
    def trained_samples(self) -> int:
        """Number of samples trained in an epoch, over all processes; less than all only if a window
        is dropped."""
        return self._bounds(self._window_micro_steps(self._steps - 1)[-1])[1]

    def samples_of(self, process: int) -> int:
        """Number of samples that a process takes in an epoch, whose windows are equal except for
        the last."""

        def of_window(number: int) -> int:
            return sum(len(part.indices) for part in self.window(0, number, process))

        return (self._steps - 1) * of_window(0) + of_window(self._steps - 1)

    def window(self, epoch: int, number: int, process: int) -> tuple[MicroBatch, ...]:
        """The micro-batches of `process` in window `number` of `epoch`, all counted from 0."""
        _at_least("epoch", epoch, 0)
        _within("window", number, self._steps)
        _within("process", process, len(self._shares))
        order = self._order_of(epoch)
        bounds = [self._bounds(m) for m in self._window_micro_steps(number)]
        samples = bounds[-1][1] - bounds[0][0]
        return tuple(
            self._micro_batch(order, begin, end, process, samples) for begin, end in bounds
        )

    def _micro_batch(
        self, order: torch.Tensor, begin: int, end: int, process: int, window_samples: int
    ) -> MicroBatch:
        sizes = sharing.split(end - begin, self._shares)
        first, count = begin + sum(sizes[:process]), sizes[process]
        return MicroBatch(
            # A copy, so that sending a batch elsewhere does not send the whole epoch.
            indices=order[first : first + count].clone(),
            weight=count * len(sizes) / window_samples,
        )

    def _window_micro_steps(self, number: int) -> range:
        first = number * self._accumulation
        return range(first, min(first + self._accumulation, self._micro_steps))

    def _bounds(self, micro_step: int) -> tuple[int, int]:
        """The first position of a micro-step in the epoch, and the one after its last."""
        last = micro_step == self._micro_steps - 1
        return micro_step * self._batch, self._samples if last else (micro_step + 1) * self._batch

    def _order_of(self, epoch: int) -> torch.Tensor:
        # A pair replaced at once: a thread that loads ahead may ask for another epoch.
        kept, order = self._order
        if kept != epoch:
            order = self._permute(epoch)
            self._order = (epoch, order)
        return order

    def _permute(self, epoch: int) -> torch.Tensor:
        return permutation(self._samples, seed=self._seed, epoch=epoch)


def _shares_of(processes: int, shares: Sequence[float] | None) -> tuple[float, ...]:
    if shares is None:
        return (1.0,) * processes
    sharing.check_shares(shares)
    if len(shares) != processes:
        raise UsageError(
            f"got {units.counted(len(shares), 'share')} for "
            f"{processes} process{'' if processes == 1 else 'es'}; expected one for each"
        )
    return tuple(shares)


def _micro_steps(samples: int, spec: TrainingSpec) -> int:
    if samples < spec.group_size:
        raise DataError(
            f"got {samples} training samples for {spec.group_size} replicas; expected at least "
            "one for each; take more samples or fewer replicas"
        )
    full, rest = divmod(samples, spec.global_batch_size)
    return full + (rest >= spec.group_size) if full else 1


def _windows(micro_steps: int, spec: TrainingSpec) -> int:
    full, rest = divmod(micro_steps, spec.accumulation_steps)
    if spec.last_window == "step":
        return full + (rest > 0)
    if not full:
        raise DataError(
            f"got {micro_steps} micro-steps an epoch for {spec.accumulation_steps} in a window; "
            "to drop the last window would leave none; take fewer accumulation steps, a smaller "
            "batch, more samples, or step the last window"
        )
    return full
