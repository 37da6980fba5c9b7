"""Embeddings with sparse gradients: which they are, and their bucket.

The ranks exchange the rows that they have.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.groups import gather_values


def sparse_weights(module: nn.Module) -> set[str]:
    """Names of the embedding weights in `module` that get sparse gradients."""
    return {
        f"{name}.weight".lstrip(".")  # the module itself has no name
        for name, child in module.named_modules()
        if isinstance(child, (nn.Embedding, nn.EmbeddingBag)) and child.sparse
    }


class SparseBucket:
    """The sparse gradient of one embedding, in the place of a Bucket."""

    nbytes = 0  # they differ from step to step
    copies_early = False  # `pack` takes the gradient as it is

    def __init__(self, index: int, parameter: nn.Parameter, group: dist.ProcessGroup) -> None:
        self.indices = [index]
        self.parameter, self.group = parameter, group

    def begin(self, idle: Collection[int]) -> SparseReduction:
        """See Bucket."""
        return SparseReduction(self, set(self.indices).difference(idle))


class SparseReduction:
    """The reduction of one sparse gradient in one backward. It has the methods of a Reduction.

    Each rank sends its rows, and whether it has aborted, when it waits for the others.
    """

    def __init__(self, bucket: SparseBucket, pending: set[int]) -> None:
        self.bucket, self.pending = bucket, pending
        self._saved: Tensor | None = None  # the gradient from before this backward
        self._rows: Tensor | None = None
        self._aborts = self._is_aborted = False

    def copy_early(self, index: int, scale: float) -> None:
        """See Reduction."""

    def pack(self, scale: float, unused: Collection[int]) -> None:
        """See Reduction."""
        self._saved = self.bucket.parameter.grad
        if self._saved is not None:
            self._rows = (self._saved.detach() * scale).coalesce()

    def clear(self) -> None:
        """See Reduction."""
        self._saved = self.bucket.parameter.grad

    def send(self, hook: object, number: int, *, last: bool) -> None:
        """See Reduction; `wait` sends, in the order of the buckets."""

    def wait(self) -> None:
        """See Reduction."""
        weight, rows = self.bucket.parameter.detach(), self._rows
        mine = None if rows is None else [rows.indices(), rows.values()]
        sent = gather_values([self._aborts, mine], self.bucket.group, device=weight.device)
        self._is_aborted = any(aborts for aborts, _ in sent)
        none = [torch.empty((1, 0), dtype=torch.long), weight.new_empty((0, *weight.shape[1:]))]
        indices, values = zip(none, *(held for _, held in sent if held), strict=True)
        self._rows = torch.sparse_coo_tensor(
            torch.cat([part.to(weight.device) for part in indices], dim=1),
            torch.cat([part.to(weight.device) for part in values]),
            weight.shape,
            check_invariants=False,
        ).coalesce()

    def finalize(self, used: Collection[int] | None) -> None:
        """See Reduction."""
        is_used = used is None or self.bucket.indices[0] in used
        self.bucket.parameter.grad = self._rows if is_used else self._saved

    def abort(self) -> None:
        """See Reduction."""
        self._aborts = True

    def is_aborted(self) -> bool:
        """See Reduction."""
        return self._is_aborted
