"""The samples of a trial's steps: which ones each step takes, and how they reach the device.

`StepPlan` deals the samples of all steps. As set by `--prefetch` and `--data-workers`, all samples
are on the device; or each step takes its own from host memory; or a thread or worker processes load
them ahead in the order of the plan. A step gets the same samples in every case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from typing import NamedTuple

import torch

from dpbench.data.batch import Samples
from dpbench.data.datasets import Dataset
from dpbench.data.loading import loaded_ahead, loaded_by_workers, to_device
from dpbench.data.sharding import sample_indices
from dpbench.data.user_dataset import UserDataset
from dpbench.measure.window import segment_sizes
from dpbench.parallel.agreement import tensors_sha256
from dpbench.records.trial import Mode
from dpbench.specs import TrialSpec

PHASE_STEPS = 5
"""Steps whose phases are timed."""
TRACED_STEPS = 10
"""Steps in which it is noted when each gradient is ready."""


def micro_step_indices(trial: TrialSpec, rank: int, dataset_size: int) -> Iterator[torch.Tensor]:
    """The sample indices of every micro-step of one rank, in host memory, without end; int64
    (samples,).

    Micro-steps cross the end of an epoch, so that all have the same size.
    """
    part, seed = trial.sample_range(rank), trial.workload.seed
    begins = itertools.count(0, trial.global_batch_size)
    parts = (range(begin + part.start, begin + part.stop) for begin in begins)
    return (sample_indices(positions, dataset_size, seed=seed) for positions in parts)


class Segment(NamedTuple):
    """Consecutive steps of one mode."""

    steps: Sequence[Sequence[torch.Tensor]]
    """The sample indices of each micro-step of each step, int64 (samples,)."""
    mode: Mode = "timed"


class StepPlan:
    """All steps of one rank in a trial, in the order in which they are taken. Indices are where the
    samples are: on the device, or in host memory if they are loaded from there.

    Segments of the timed window with and without synchronization take turns, both on the same
    samples. Two neighboring pairs have the opposite order, so that a drift of the machine's speed
    affects both alike.
    """

    def __init__(
        self, trial: TrialSpec, rank: int, dataset_size: int, device: torch.device
    ) -> None:
        place = device if trial.prefetch is None else "cpu"
        every = micro_step_indices(trial, rank, dataset_size)
        self._further = (indices.to(place) for indices in every)
        modes: list[Mode] = ["timed", "unsynced"] if trial.has_unsynced_window else ["timed"]
        per_step = trial.accumulate
        is_traced = trial.traces_gradients and trial.repetition == 0
        self.warmup = Segment(self._deal(trial.warmup, per_step))
        self.timed: list[Segment] = []
        for number, size in enumerate(segment_sizes(trial.steps)):
            steps = self._deal(size, per_step)
            turns = modes if number % 2 == 0 else modes[::-1]
            self.timed += [Segment(steps, mode) for mode in turns]
        # A step takes one micro-batch, whatever the trial accumulates: the simulation combines
        # micro-steps itself.
        self.traced = Segment(self._deal(TRACED_STEPS if is_traced else 0, 1))
        self.instrumented = [
            Segment(self._deal(PHASE_STEPS, per_step), mode)
            for mode in modes
            if trial.is_instrumented
        ]

    def _deal(self, steps: int, micro_steps: int) -> list[list[torch.Tensor]]:
        return [[*islice(self._further, micro_steps)] for _ in range(steps)]

    @property
    def timed_checksum(self) -> str:
        """A hash of the indices of the timed window."""
        taken = chain.from_iterable(steps for steps, mode in self.timed if mode == "timed")
        return tensors_sha256(("", indices) for step in taken for indices in step)

    def micro_steps(self) -> Iterator[torch.Tensor]:
        """The indices of all micro-steps in order; further ones follow without end, so that loading
        ahead takes as much in the last step as in all others."""
        for steps, _ in (self.warmup, *self.timed, self.traced, *self.instrumented):
            yield from chain.from_iterable(steps)
        yield from self._further


SEEDS_PER_RANK = 2**32
"""Difference between the seeds of two ranks' workers, so that no two passes share one."""


@contextmanager
def loading_batches(
    trial: TrialSpec, rank: int, plan: StepPlan, source: Dataset | UserDataset, device: torch.device
) -> Iterator[Callable[[torch.Tensor], tuple[Samples, Samples]]]:
    """A function for inputs and targets at some indices, on the device, from `source` in host
    memory; nothing of it keeps running after the context. What is loaded ahead comes in the order
    of the plan, which must not change then: no window may fill a time.

    Worker processes are forked here, so enter it before joining the process group.
    """
    if trial.prefetch is None:
        assert isinstance(source, Dataset)
        yield source.to(device).select
        return
    if trial.prefetch == 0:
        yield lambda indices: to_device(source.select(indices), device)
        return
    stream, depth = plan.micro_steps(), trial.prefetch
    with ExitStack() as stack:
        loaded: Iterator[tuple[Samples, Samples]] = map(source.select, stream)
        if trial.data_workers:
            by_workers = loaded_by_workers(
                source,
                stream,
                workers=trial.data_workers,
                prefetch=trial.prefetch,
                seed=trial.workload.seed + rank * SEEDS_PER_RANK,
            )
            loaded = stack.enter_context(by_workers)
            # Workers already load ahead; for CUDA a copy still has to run beside the step.
            depth = 1 if device.type == "cuda" else 0
        ahead = loaded_ahead(loaded, depth * trial.accumulate, device)
        batches = stack.enter_context(ahead)
        yield lambda _: next(batches)
