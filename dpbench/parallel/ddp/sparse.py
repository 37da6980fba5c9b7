"""The bucket of an embedding with sparse gradients: the ranks exchange the rows that they have."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.ddp.comm_hooks import Future, GradientBucket, Hook


class SparseBucket:
    """The sparse gradient of one embedding. It has the methods of a Bucket.

    Each rank sends how many rows it has, whether it has given up, and then the rows.
    """

    def __init__(self, index: int, parameter: nn.Parameter, group: dist.ProcessGroup) -> None:
        self.indices = [index]
        self.waiting: set[int] = set()
        self.nbytes = 0  # it differs from step to step
        self._parameter, self._group = parameter, group
        self._rows = self._no_rows()
        self._gives_up = self._has_given_up = self._is_due = False
        self._future: Future[Any] | None = None
        self._before: Tensor | None = None

    def fill(self, scale: float, silent: Collection[int] = ()) -> None:
        """See Bucket."""
        gradient = self._before = self._parameter.grad
        if gradient is not None and not gradient.is_sparse:
            raise RuntimeError(
                "got a dense gradient for the weight of an embedding with sparse=True, expected a "
                "sparse one; if the weight is shared with another layer, set sparse=False"
            )
        self._rows = self._no_rows() if gradient is None else gradient.detach().coalesce() * scale
        if not self._rows.is_coalesced():
            self._rows = self._rows.coalesce()

    def clear(self) -> None:
        """See Bucket."""
        self._rows = self._no_rows()
        self._before = self._parameter.grad

    def send(self, hook: Hook | None, number: int, *, last: bool) -> None:
        """See Bucket."""
        self._is_due = True
        if hook is not None:
            bucket = GradientBucket(number, self._rows, [self._rows], [self._parameter], last)
            self._future = hook(bucket)

    def wait(self) -> None:
        """See Bucket; the exchange itself happens here, in the order of the buckets."""
        if not self._is_due:
            return
        self._is_due = False
        if self._future is not None:
            result, self._future = self._future.wait(), None
            self._rows = result[0] if isinstance(result, (list, tuple)) else result
            return
        indices, values = self._rows.indices().t(), self._rows.values()
        own = torch.tensor([len(values), int(self._gives_up)], device=values.device)
        self._gives_up = False
        everyone = [torch.empty_like(own) for _ in range(self._group.size())]
        dist.all_gather(everyone, own, self._group)
        counts, given_up = zip(*(pair.tolist() for pair in everyone), strict=True)
        self._has_given_up = any(given_up)
        self._rows = torch.sparse_coo_tensor(
            self._gathered(indices, counts).t(),
            self._gathered(values, counts),
            self._rows.shape,
            check_invariants=False,
        ).coalesce()

    def hand_out(self, used: Collection[int] | None) -> None:
        """See Bucket."""
        is_used = used is None or self.indices[0] in used
        self._parameter.grad = self._rows if is_used else self._before
        self._before = None

    def give_up(self) -> None:
        """See Bucket."""
        self._gives_up = True

    def has_given_up(self) -> bool:
        """See Bucket."""
        answer, self._has_given_up = self._has_given_up, False
        return answer

    def _gathered(self, mine: Tensor, counts: tuple[int, ...]) -> Tensor:
        """The rows of all ranks, of which they have `counts`."""
        padded = mine.new_zeros((max(counts), *mine.shape[1:]))
        padded[: len(mine)] = mine
        everyone = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(everyone, padded, self._group)
        return torch.cat([part[:count] for part, count in zip(everyone, counts, strict=True)])

    def _no_rows(self) -> Tensor:
        weight = self._parameter.detach()
        where = torch.empty((1, 0), dtype=torch.long, device=weight.device)
        values = weight.new_empty((0, *weight.shape[1:]))
        made = torch.sparse_coo_tensor(where, values, weight.shape, check_invariants=False)
        return made.coalesce()
