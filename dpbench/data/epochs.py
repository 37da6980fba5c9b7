"""The samples that a process trains on: every sample once an epoch, with exact weights.

An epoch is a permutation of the samples. Micro-step m starts at position m·B, where B is the global
batch size. The last micro-step ends with the epoch: it may be smaller, and if it would leave a
replica without a sample, it joins the micro-step before it. A process takes a contiguous part of
every micro-step, so all of them make the same number of steps. `accumulation_steps` micro-steps
form a window, after which the optimizer steps once.

With the same seed and global batch size, every number of replicas and every division into shares
takes the samples in the same order. The micro-steps are the same too, unless the rest of an epoch
is smaller than one of the numbers of replicas: there the last two are one micro-step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dpbench import units
from dpbench.data.sharding import permutation
from dpbench.errors import DataError, UsageError
from dpbench.specs import shares as sharing
from dpbench.specs.training import TrainingSpec


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
    sharing.check(shares)
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


def _at_least(what: str, got: int, least: int) -> None:
    if got < least:
        raise UsageError(f"{what}: got {got}, expected at least {least}")


def _within(what: str, got: int, count: int) -> None:
    if not 0 <= got < count:
        raise UsageError(f"{what}: got {got}, expected 0 to {count - 1}")
