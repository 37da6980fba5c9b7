"""The supply of a trial's steps with samples, as set by `--prefetch` and `--data-workers`.

Samples are on the device; or each step takes its own from host memory; or a thread or worker
processes load them ahead, as one stream in the sampler's order, through all windows. A step gets
the same samples in every case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Protocol

import torch

from dpbench.data.batch import Samples
from dpbench.data.datasets import Dataset
from dpbench.data.items import Collated, ItemsOf, Source
from dpbench.data.loader import Transfer, receive
from dpbench.data.prefetch import Prefetcher, Taken, taken_by_workers
from dpbench.data.sharding import GlobalBatchSampler
from dpbench.measure.window import segment_sizes
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

StepBatches = list[torch.Tensor]
"""The sample indices of each micro-step of one step, int64 (samples,)."""


def micro_batches(trial: TrialSpec, rank: int, dataset_size: int) -> Iterator[torch.Tensor]:
    """The sample indices of every micro-step of one rank, in host memory, without end.

    Where a segment of the timed window has a twin without synchronization, both take the same
    samples, so the timed steps of all implementations do.
    """
    first, size = trial.process_shard(rank)
    sampler = GlobalBatchSampler(
        dataset_size,
        trial.global_batch_size,
        first=first,
        count=size,
        seed=trial.workload.seed,
    )
    stream = (indices for step in count() for indices in sampler.batches(step, 1))
    yield from islice(stream, trial.warmup_steps * trial.accumulation_steps)
    repeats = IMPLEMENTATIONS[trial.implementation].can_leave_out_sync
    for steps in segment_sizes(trial):
        segment = list(islice(stream, steps * trial.accumulation_steps))
        yield from segment
        if repeats:
            yield from segment
    yield from stream


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


SEEDS_PER_SWEEP = 2**32
"""Difference between the seeds of two ranks' workers, so that no two passes share one."""


class Feed(Protocol):
    """A source of samples for steps."""

    def take(self, indices: torch.Tensor) -> tuple[Samples, Samples]:
        """Inputs and targets on the device, in the layout of the model."""
        ...


@contextmanager
def feeding(trial: TrialSpec, rank: int, source: Source, device: torch.device) -> Iterator[Feed]:
    """The feed of one rank, from samples in host memory; nothing of it keeps running after the
    context.

    Worker processes are forked here, so enter it before joining the process group.
    """
    if trial.prefetch is None:
        assert isinstance(source, Dataset)
        yield source.to(device)
        return
    loader = _Loader(device)
    if trial.prefetch == 0:
        yield _WhenAsked(source, loader)
        return
    with ExitStack() as stack:
        batches: Iterable[_Loaded]
        if trial.data_workers:
            taken = stack.enter_context(_workers(trial, rank, source))
            batches = (loader.load(indices, samples) for indices, samples in taken)
            # Workers already load ahead; for CUDA a copy still has to run beside the step.
            depth = 1 if device.type == "cuda" else 0
        else:
            stream = micro_batches(trial, rank, len(source))
            batches = (loader.load(indices, source.take(indices)) for indices in stream)
            depth = trial.prefetch
        ahead = Prefetcher(batches, depth * trial.accumulation_steps)
        yield _Ahead(stack.enter_context(ahead))


@dataclass(frozen=True, slots=True, eq=False)
class _Loaded:
    """A batch on its way to the device."""

    indices: torch.Tensor
    samples: tuple[Samples, Samples]
    copied: torch.cuda.Event | None

    def received(self) -> tuple[Samples, Samples]:
        receive(self.samples, self.copied)
        return self.samples


class _Loader:
    """Copies samples from host memory to the device."""

    def __init__(self, device: torch.device) -> None:
        self._transfer = Transfer(device)

    def load(self, indices: torch.Tensor, samples: tuple[Samples, Samples]) -> _Loaded:
        with self._transfer.copying():
            inputs, targets = self._transfer.move(samples)
        return _Loaded(indices, (inputs, targets), self._transfer.copied())


class _WhenAsked:
    """A feed where each step takes and copies its own samples."""

    def __init__(self, source: Source, loader: _Loader) -> None:
        self._source = source
        self._loader = loader

    def take(self, indices: torch.Tensor) -> tuple[Samples, Samples]:
        return self._loader.load(indices, self._source.take(indices)).received()


class _Ahead:
    """A feed of batches loaded ahead, in an order that the steps have to keep."""

    def __init__(self, batches: Iterator[_Loaded]) -> None:
        self._batches = batches

    def take(self, indices: torch.Tensor) -> tuple[Samples, Samples]:
        """Take the batch of `indices`, which are in host memory. Raises RuntimeError unless it is
        the next one."""
        loaded = next(self._batches)
        if not torch.equal(loaded.indices, indices):
            raise RuntimeError(
                f"samples were loaded ahead in another order than steps take them: got those "
                f"from {loaded.indices[:3].tolist()} on, expected {indices[:3].tolist()}"
            )
        return loaded.received()


def _workers(
    trial: TrialSpec, rank: int, source: Source
) -> AbstractContextManager[Iterator[Taken]]:
    assert trial.prefetch
    return taken_by_workers(
        Collated(ItemsOf(source)) if isinstance(source, Dataset) else source,
        micro_batches(trial, rank, len(source)),
        workers=trial.data_workers,
        prefetch=trial.prefetch,
        seed=trial.workload.seed + rank * SEEDS_PER_SWEEP,
    )
