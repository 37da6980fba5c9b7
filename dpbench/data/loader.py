"""The windows of an epoch on a device, optionally loaded ahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from dpbench.data.batch import Samples
from dpbench.data.datasets import Dataset
from dpbench.data.prefetch import Prefetcher
from dpbench.data.sharding import EpochPlan
from dpbench.parallel.tree import is_own_batch, map_leaves, tensors


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The samples of one process in one micro-step, on its device."""

    inputs: Samples
    """Each tensor is (samples, …)."""
    targets: Samples
    """Each tensor is (samples, …)."""
    weight: float
    """Weight of the mean loss of these samples; see MicroBatch."""
    samples: int


@dataclass(frozen=True, slots=True, eq=False)
class LoadedWindow:
    """The micro-batches behind one optimizer step."""

    batches: tuple[Batch, ...]
    ready: torch.cuda.Event | None = None
    """Event at the end of the copies to a CUDA device; None if there is nothing to wait for."""


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
        self._prefetch = prefetch
        self._transfer = Transfer(device)

    def epoch(self, epoch: int, first_window: int = 0) -> Prefetcher[LoadedWindow]:
        """The windows of `epoch` from `first_window` on, both from 0; use it as a context."""
        return Prefetcher(self._windows(epoch, first_window), self._prefetch, receive=_receive)

    def _windows(self, epoch: int, first: int) -> Iterator[LoadedWindow]:
        for number in range(first, self._plan.steps):
            batches = []
            with self._transfer.copying():
                for part in self._plan.window(epoch, number, self._process):
                    inputs, targets = self._transfer.move(self._dataset.take(part.indices))
                    batches.append(Batch(inputs, targets, part.weight, len(part.indices)))
            yield LoadedWindow(tuple(batches), self._transfer.copied())


def _receive(window: LoadedWindow) -> None:
    receive([[batch.inputs, batch.targets] for batch in window.batches], window.ready)


class Transfer:
    """Copies to one device; to CUDA from pinned memory, on a stream of its own.

    The copying code calls `move` inside `copying` and keeps `copied`; the computing code waits for
    that with `receive`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copying(self) -> AbstractContextManager[object]:
        # Also makes the device current in the thread: otherwise pinning would make a context on
        # the first GPU for every rank.
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def move(self, samples: Samples) -> Samples:
        """The samples on the device; the copy may still be running."""

        def moved(leaf: Any) -> Any:
            if self._stream is None:
                return leaf.to(self._device)
            if is_own_batch(leaf):
                # `receive` does not see its tensors, so they belong to the computation's stream.
                with torch.cuda.stream(torch.cuda.default_stream(self._device)):
                    return leaf.to(self._device)
            return leaf.pin_memory().to(self._device, non_blocking=True)

        return map_leaves(moved, samples)

    def copied(self) -> torch.cuda.Event | None:
        """An event at the end of all copies so far; None if they are already done."""
        return None if self._stream is None else self._stream.record_event()


def receive(samples: Samples, copied: torch.cuda.Event | None) -> None:
    """Make the computation wait for the copies, and keep their memory until it is done."""
    if copied is None:
        return
    found = tensors(samples)
    stream = torch.cuda.current_stream(found[0].device)
    stream.wait_event(copied)
    for tensor in found:
        tensor.record_stream(stream)
