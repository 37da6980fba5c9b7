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
        self._before: Tensor | None = None

    def fill(self, scale: float, silent: Collection[int] = ()) -> None:
        """See Bucket."""
        gradient = self._before = self._parameter.grad
        if gradient is None:
            self._rows = self._no_rows()
        else:
            self._rows = (gradient.detach() * scale).coalesce()

    def clear(self) -> None:
        """See Bucket."""
        self._rows = self._no_rows()
        self._before = self._parameter.grad

    def send(self, hook: object, number: int, *, last: bool) -> None:
        """See Bucket; there is no hook for sparse gradients."""
        self._is_due = True

    def wait(self) -> None:
        """See Bucket; the exchange itself happens here, in the order of the buckets."""
        if not self._is_due:
            return
        self._is_due = False
        indices, values = self._rows.indices().t(), self._rows.values()
        own = torch.tensor([len(values), int(self._gives_up)], device=values.device)
        self._gives_up = False
        everyone = [pair.tolist() for pair in gather_tensors(own, self._group)]
        counts, given_up = zip(*everyone, strict=True)
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
        everyone = gather_tensors(padded, self._group)
        return torch.cat([part[:count] for part, count in zip(everyone, counts, strict=True)])

    def _no_rows(self) -> Tensor:
        weight = self._parameter.detach()
        where = torch.empty((1, 0), dtype=torch.long, device=weight.device)
        values = weight.new_empty((0, *weight.shape[1:]))
        made = torch.sparse_coo_tensor(where, values, weight.shape, check_invariants=False)
        return made.coalesce()
