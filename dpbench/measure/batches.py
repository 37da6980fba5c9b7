"""The samples of a trial's steps: which ones each step takes, and how they reach the device.

As set by `--prefetch` and `--data-workers`, all samples are on the device; or each step takes its
own from host memory; or a thread or worker processes load them ahead in the order of `StepSamples`.
A step gets the same samples in every case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice

import torch

from dpbench.data.batch import Samples
from dpbench.data.datasets import Dataset, UserDataset
from dpbench.data.loading import loaded_ahead, loaded_by_workers, to_device
from dpbench.data.sharding import sample_indices
from dpbench.records.trial import Mode
from dpbench.specs import Configuration

SEGMENTS = 4
MIN_SEGMENT_STEPS = 3
"""Least steps of a segment, as its first step finds an idle device and cold caches."""


class StepSamples:
    """The samples of one rank's steps in a trial, dealt in order and without end.

    A step has the indices of each of its micro-steps, int64 (samples,). They are where the samples
    are: on the device, or in host memory if samples are loaded from there. Micro-steps cross the
    end of an epoch, so that all have the same size.
    """

    def __init__(
        self, configuration: Configuration, rank: int, dataset_size: int, device: torch.device
    ) -> None:
        place = device if configuration.prefetch is None else "cpu"
        part, seed = configuration.sample_range(rank), configuration.workload.seed
        begins = itertools.count(0, configuration.global_batch_size)
        parts = (range(begin + part.start, begin + part.stop) for begin in begins)
        self._configuration = configuration
        self._micro_steps = (
            sample_indices(positions, dataset_size, seed=seed).to(place) for positions in parts
        )

    def deal(self, steps: int, micro_steps: int | None = None) -> Sequence[Sequence[torch.Tensor]]:
        """The next steps, of so many micro-steps; None means as many as the trial accumulates."""
        count = micro_steps or self._configuration.accumulate
        return [[*islice(self._micro_steps, count)] for _ in range(steps)]

    def segments(self, steps: int) -> Iterator[tuple[Mode, Sequence[Sequence[torch.Tensor]]]]:
        """The next `steps` in segments: consecutive steps of one mode.

        Segments with and without synchronization take turns, both on the same samples. Two
        neighboring pairs have the opposite order, so that a drift of the machine's speed affects
        both alike.
        """
        modes: list[Mode] = ["timed"]
        if self._configuration.has_unsynced_window:
            modes.append("unsynced")
        count = max(1, min(SEGMENTS, steps // MIN_SEGMENT_STEPS))
        size, longer = divmod(steps, count)
        for number in range(count):
            dealt = self.deal(size + (number < longer))
            yield from ((mode, dealt) for mode in modes)
            modes.reverse()

    def in_order(self) -> Iterator[torch.Tensor]:
        """The indices of all micro-steps as the trial takes them, if its number of steps is known
        before; without end, so that loading ahead takes as much in the last step as in others."""
        steps = [self.deal(self._configuration.warmup)]
        steps += [segment for _, segment in self.segments(self._configuration.steps)]
        return chain(chain.from_iterable(chain.from_iterable(steps)), self._micro_steps)


SEEDS_PER_RANK = 2**32
"""Difference between the seeds of two ranks' workers, so that no two passes share one."""


@contextmanager
def loading_batches(
    configuration: Configuration, rank: int, source: Dataset | UserDataset, device: torch.device
) -> Iterator[Callable[[torch.Tensor], tuple[Samples, Samples]]]:
    """A function for inputs and targets at some indices, on the device, from `source` in host
    memory; nothing of it keeps running after the context. What is loaded ahead comes in the order
    of `StepSamples`, so that no window may fill a time then.

    Worker processes are forked here, so enter it before joining the process group.
    """
    if configuration.prefetch is None:
        assert isinstance(source, Dataset)
        yield source.to(device).select
        return
    if configuration.prefetch == 0:
        yield lambda indices: to_device(source.select(indices), device)
        return
    stream = StepSamples(configuration, rank, len(source), device).in_order()
    depth = configuration.prefetch
    with ExitStack() as stack:
        loaded: Iterator[tuple[Samples, Samples]] = map(source.select, stream)
        if configuration.data_workers:
            by_workers = loaded_by_workers(
                source,
                stream,
                workers=configuration.data_workers,
                prefetch=configuration.prefetch,
                seed=configuration.workload.seed + rank * SEEDS_PER_RANK,
            )
            loaded = stack.enter_context(by_workers)
            # Workers already load ahead; for CUDA a copy still has to run beside the step.
            depth = 1 if device.type == "cuda" else 0
        ahead = loaded_ahead(loaded, depth * configuration.accumulate, device)
        batches = stack.enter_context(ahead)
        yield lambda _: next(batches)
