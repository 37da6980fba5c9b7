"""Embeddings with sparse gradients: which they are, and how ranks average their rows."""

from __future__ import annotations

from collections.abc import Mapping

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


def average_rows(
    tables: Mapping[int, nn.Parameter], divisor: int, group: dist.ProcessGroup, *, has_data: bool
) -> dict[int, Tensor]:
    """The sums of sparse gradients over the ranks ÷ `divisor`, in one message of the rows that each
    rank has; a collective, whose host waits for the GPU if the tables are on one.

    Args:
        tables: all parameters with such gradients, by index; the same on every rank.
        divisor: a number.
        group: the ranks.
        has_data: False if the gradients of this rank do not count.
    """
    scaled = {
        index: (table.grad.detach() * (1 / divisor)).coalesce()
        for index, table in tables.items()
        if has_data and table.grad is not None
    }
    rows = {index: [tensor.indices(), tensor.values()] for index, tensor in scaled.items()}
    device = next(iter(tables.values())).device
    rows_by_rank = gather_values(rows, group, device=device)
    averages = {}
    for index, table in tables.items():
        weight = table.detach()
        no_rows = [torch.empty((1, 0), dtype=torch.long), weight.new_empty((0, *weight.shape[1:]))]
        parts = [no_rows, *(rows[index] for rows in rows_by_rank if index in rows)]
        indices, values = zip(*parts, strict=True)
        averages[index] = torch.sparse_coo_tensor(
            torch.cat([part.to(weight.device) for part in indices], dim=1),
            torch.cat([part.to(weight.device) for part in values]),
            weight.shape,
            check_invariants=False,
        ).coalesce()
    return averages
