"""The windows of an epoch on a device, optionally loaded ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from dpbench.data.batch import Samples
from dpbench.data.datasets import Dataset
from dpbench.data.prefetch import Prefetcher
from dpbench.data.sharding import EpochPlan
from dpbench.parallel.tree import is_own_batch, map_leaves, tensors

T = TypeVar("T")


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

    def epoch(self, epoch: int, first_window: int = 0) -> Prefetcher[Sent[list[Batch]]]:
        """The micro-batches of each window of `epoch` from `first_window` on, both from 0.

        Use it as a context, and pass each window to `receive`.
        """
        windows = self._windows(epoch, first_window)
        return Prefetcher(map(self._transfer.send, windows), self._prefetch)

    def _windows(self, epoch: int, first: int) -> Iterator[list[Batch]]:
        for number in range(first, self._plan.steps):
            parts = self._plan.window(epoch, number, self._process)
            yield [
                Batch(*self._dataset.take(part.indices), part.weight, len(part.indices))
                for part in parts
            ]


Sent = tuple[T, torch.cuda.Event | None]
"""Samples on their way to a device, and the end of the copy; None if it is done."""


class Transfer:
    """Copies to one device; to CUDA from pinned memory, on a stream of its own.

    The computing code gets the samples by `receive`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, samples: T) -> Sent[T]:
        """The samples on the device; the copy may still be running."""
        if self._stream is None:
            return map_leaves(self._copied, samples), None
        # The context also makes the device current in the thread: otherwise pinning would make a
        # context on the first GPU for every rank.
        with torch.cuda.stream(self._stream):
            return map_leaves(self._copied, samples), self._stream.record_event()

    def _copied(self, leaf: Any) -> Any:
        if is_own_batch(leaf) and self._stream is not None:
            # `receive` does not see its tensors, so they belong to the computation's stream.
            with torch.cuda.stream(torch.cuda.default_stream(self._device)):
                return leaf.to(self._device)
        if is_own_batch(leaf) or (self._stream is None and isinstance(leaf, torch.Tensor)):
            return leaf.to(self._device)
        if isinstance(leaf, torch.Tensor):
            return leaf.pin_memory().to(self._device, non_blocking=True)
        return leaf  # the weight of a batch


def receive(sent: Sent[T]) -> T:
    """The samples. The computation waits for their copies, and their memory is kept until it is
    done."""
    samples, copied = sent
    if copied is not None:
        found = tensors(samples)
        stream = torch.cuda.current_stream(found[0].device)
        stream.wait_event(copied)
        for tensor in found:
            tensor.record_stream(stream)
    return samples
