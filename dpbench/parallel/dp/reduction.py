"""Adds up the replicas' gradients of each parameter, and counts the bytes.

On the CPU the sum is bound by memory, so large gradients are cut into as many ranges as there are
replicas, and each worker thread adds up one range of all of them. Gradients from another device
travel in one flat buffer per dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpbench.parallel.ddp.holders import views_of
from dpbench.parallel.dp.workers import Job, WorkerPool
from dpbench.parallel.flat import by_kind, flattened, unflattened

SHARED_ELEMENTS = 65536
"""Smallest gradient that all workers share: 30 µs of work, three times the cost of splitting."""

Column = list[Tensor]
"""The gradients of one parameter, from the replicas that have one."""


class Reduction:
    """Sums gradients over replicas onto one device.

    Attributes:
        device: the device of the sums and of the original parameters.
        reduced_bytes: bytes of summed gradients since construction.
        reductions: backward passes with a sum since construction.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.reduced_bytes = 0
        self.reductions = 0

    def add(
        self,
        replicas: Sequence[Sequence[Tensor | None]],
        workers: WorkerPool,
        *,
        are_own: bool = False,
    ) -> list[Tensor | None]:
        """Σ over the replicas of each gradient, in their order; None where no replica has one.

        Args:
            replicas: the gradients of each replica.
            workers: share the work.
            are_own: whether nobody else refers to these tensors. Large sums are then made in the
                memory of the first one, unless another gradient is in the same memory.
        """
        moved = [coalesced(gradients, self.device) for gradients in replicas]
        columns = {
            i: found
            for i, column in enumerate(zip(*moved, strict=True))
            if (found := [gradient for gradient in column if gradient is not None])
        }
        shared = {i: column for i, column in columns.items() if _shareable(column)}
        others = {i: column for i, column in columns.items() if i not in shared}
        large = list(shared.values())
        results = [
            column[0] if are_own and _is_alone(column[0]) else torch.empty_like(column[0])
            for column in large
        ]
        _add_shared(large, results, workers)
        total = dict(zip(shared, results, strict=True))
        total.update(zip(others, _add_foreach(list(others.values())), strict=True))
        summed = sum(_bytes(gradient) for gradient in total.values())
        if summed:
            self.reductions += 1
            self.reduced_bytes += summed
        return [total.get(i) for i in range(len(moved[0]))]


def coalesced(gradients: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """The gradients on `device`, brought there in one message per dtype; sparse ones alone."""
    arrived: dict[int, Tensor] = {}
    for alike in by_kind(g for g in gradients if g is not None and g.device != device):
        if alike[0].layout is torch.strided:
            there = unflattened(flattened(alike).to(device), alike)
        else:
            there = [tensor.to(device) for tensor in alike]
        arrived.update(zip(map(id, alike), there, strict=True))
    return [None if g is None else arrived.get(id(g), g) for g in gradients]


def _shareable(column: Column) -> bool:
    return (
        len(column) > 1
        and column[0].device.type == "cpu"
        and column[0].layout is torch.strided
        and column[0].numel() >= SHARED_ELEMENTS
        and all(tensor.is_contiguous() for tensor in column)
    )


def _add_foreach(columns: Sequence[Column]) -> list[Tensor]:
    """The sums of the columns, in one operation per further replica."""
    sums = [column[0] for column in columns]
    for replica in range(1, max(map(len, columns), default=0)):
        places = [i for i, column in enumerate(columns) if len(column) > replica]
        others = [columns[i][replica] for i in places]
        # Private by name, but torch's documentation of foreach names it.
        added = torch._foreach_add([sums[i] for i in places], others)
        for i, result in zip(places, added, strict=True):
            sums[i] = result
    return sums


def _is_alone(gradient: Tensor) -> bool:
    """Whether no other tensor is in this memory: autograd may give the same memory as the gradient
    of two parameters."""
    # The gradient itself, and the storage object made for this call.
    return views_of(gradient.untyped_storage()) <= 2


def _add_shared(columns: Sequence[Column], results: Sequence[Tensor], workers: WorkerPool) -> None:
    """Write the sums of the columns to `results`; each worker makes its range of all of them.

    A result may be the first tensor of its column.
    """
    if not columns:
        return
    count = len(workers.devices)

    def job(worker: int) -> Job:
        def add() -> None:
            for column, result in zip(columns, results, strict=True):
                size = result.numel()
                mine = slice(size * worker // count, size * (worker + 1) // count)
                first, *others = (tensor.view(-1)[mine] for tensor in column)
                into = result.view(-1)[mine]
                for other in others:
                    first = torch.add(first, other, out=into)

        return add

    workers.run({worker: job(worker) for worker in range(count)})


def _bytes(gradient: Tensor) -> int:
    """Bytes of the stored elements; torch does not define `nbytes` of a sparse tensor."""
    if gradient.layout is torch.strided:
        return gradient.nbytes
    return gradient._values().nbytes
