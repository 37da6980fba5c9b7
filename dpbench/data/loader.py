"""The windows of an epoch on a device, loaded ahead if wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from dpbench.data.batch import Samples
from dpbench.data.datasets import Dataset
from dpbench.data.epochs import EpochPlan, MicroBatch
from dpbench.data.prefetch import Prefetcher
from dpbench.errors import UsageError
from dpbench.parallel.tree import map_tensors, tensors


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The samples of one process in one micro-step, on its device."""

    inputs: Samples
    """Each tensor is (samples, …)."""
    targets: Samples
    """Each tensor is (samples, …)."""
    weight: float
    """Of the mean loss of these samples; see MicroBatch."""
    samples: int


@dataclass(frozen=True, slots=True, eq=False)
class LoadedWindow:
    """The micro-batches behind one optimizer step."""

    number: int
    """In its epoch, from 0."""
    batches: tuple[Batch, ...]
    ready: torch.cuda.Event | None = None
    """When the copies to a CUDA device are done."""


class EpochLoader:
    """Loads the samples of one process.

    Arguments:
        dataset: on the CPU.
        plan: which samples, in which window.
        process: from 0.
        device: where the batches go. To a CUDA device they are copied from pinned memory, on a
            stream of their own, beside the computation.
        prefetch: number of windows loaded ahead by a thread; 0: none.
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: EpochPlan,
        *,
        process: int,
        device: torch.device,
        prefetch: int,
    ) -> None:
        self._dataset = dataset
        self._plan = plan
        self._process = process
        self._device = device
        self._prefetch = prefetch
        self._stream = _side_stream(device) if device.type == "cuda" else None

    def epoch(self, epoch: int, first_window: int = 0) -> Prefetcher[LoadedWindow]:
        """The windows of `epoch` from `first_window` on, both from 0; use it as a context.

        Raises UsageError for a first window outside of 0 to the number of windows, which is the
        end of the epoch: no window.
        """
        if not 0 <= first_window <= self._plan.steps:
            raise UsageError(
                f"first window: got {first_window}, expected 0 to {self._plan.steps}, the end of "
                "the epoch"
            )
        return Prefetcher(self._windows(epoch, first_window), self._prefetch, receive=_receive)

    def _windows(self, epoch: int, first: int) -> Iterator[LoadedWindow]:
        for number in range(first, self._plan.steps):
            with self._copying():
                parts = self._plan.window(epoch, number, self._process)
                batches = tuple(self._load(part) for part in parts)
            ready = None if self._stream is None else self._stream.record_event()
            yield LoadedWindow(number, batches, ready)

    def _copying(self) -> AbstractContextManager[object]:
        # Also makes the device the current one in the thread: pinning would else make a context on
        # the first GPU for every rank.
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _load(self, part: MicroBatch) -> Batch:
        inputs, targets = (
            map_tensors(self._move, samples) for samples in self._dataset.take(part.indices)
        )
        return Batch(inputs, targets, part.weight, len(part.indices))

    def _move(self, samples: torch.Tensor) -> torch.Tensor:
        if self._stream is None:
            return samples.to(self._device)
        return samples.pin_memory().to(self._device, non_blocking=True)


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _receive(window: LoadedWindow) -> None:
    """Let the computation wait for the copies, and their memory for the computation."""
    if window.ready is None:
        return
    copied = [
        tensor for batch in window.batches for tensor in tensors([batch.inputs, batch.targets])
    ]
    stream = torch.cuda.current_stream(copied[0].device)
    stream.wait_event(window.ready)
    for tensor in copied:
        tensor.record_stream(stream)
