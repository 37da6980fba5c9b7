"""Embeddings with sparse gradients: which they are, and their bucket.

The ranks exchange the rows that they have.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.groups import gather_tensors


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

    Each rank sends how many rows it has, whether it has aborted, and then the rows.
    """

    def __init__(self, bucket: SparseBucket, pending: set[int]) -> None:
        self.bucket, self.pending = bucket, pending
        self._group, self._parameter = bucket.group, bucket.parameter
        self._saved: Tensor | None = None  # the gradient from before this backward
        self._rows = self._no_rows()
        self._aborts = self._is_aborted = False

    def copy_early(self, index: int, scale: float) -> None:
        """See Reduction."""

    def pack(self, scale: float, unused: Collection[int]) -> None:
        """See Reduction."""
        self._saved = self._parameter.grad
        if self._saved is not None:
            self._rows = (self._saved.detach() * scale).coalesce()

    def clear(self) -> None:
        """See Reduction."""
        self._saved = self._parameter.grad

    def send(self, hook: object, number: int, *, last: bool) -> None:
        """See Reduction; `wait` sends."""

    def wait(self) -> None:
        """See Reduction; the exchange itself happens here, in the order of the buckets."""
        indices, values = self._rows.indices().t(), self._rows.values()
        own = torch.tensor([len(values), int(self._aborts)], device=values.device)
        everyone = [pair.tolist() for pair in gather_tensors(own, self._group)]
        counts, aborted = zip(*everyone, strict=True)
        self._is_aborted = any(aborted)
        self._rows = torch.sparse_coo_tensor(
            self._gathered(indices, counts).t(),
            self._gathered(values, counts),
            self._rows.shape,
            check_invariants=False,
        ).coalesce()

    def finalize(self, used: Collection[int] | None) -> None:
        """See Reduction."""
        is_used = used is None or self.bucket.indices[0] in used
        self._parameter.grad = self._rows if is_used else self._saved

    def abort(self) -> None:
        """See Reduction."""
        self._aborts = True

    def is_aborted(self) -> bool:
        """See Reduction."""
        return self._is_aborted

    def _gathered(self, mine: Tensor, counts: tuple[int, ...]) -> Tensor:
        """The rows of all ranks, of which they have `counts`."""
        padded = mine.new_zeros((max(counts), *mine.shape[1:]))
        padded[: len(mine)] = mine
        everyone = gather_tensors(padded, self._group)
        return torch.cat([part[:count] for part, count in zip(everyone, counts, strict=True)])

    def _no_rows(self) -> Tensor:
        weight = self._parameter.detach()
        where = torch.empty((1, 0), dtype=torch.long, device=weight.device)
        values = weight.new_empty((0, *weight.shape[1:]))
        made = torch.sparse_coo_tensor(where, values, weight.shape, check_invariants=False)
        return made.coalesce()
