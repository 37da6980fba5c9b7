"""Embeddings with sparse gradients: which they are, and how ranks average their rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from dpbench.parallel.groups import gather_values


def sparse_weights(module: nn.Module) -> set[str]:
    """Names of the embedding weights in `module` that get sparse gradients."""
    return {
        f"{name}.weight".lstrip(".")  # the module itself has no name
        for name, child in module.named_modules()
        if isinstance(child, (nn.Embedding, nn.EmbeddingBag)) and child.sparse
    }


def average_rows(
    tables: Sequence[nn.Parameter], divisor: int | None, group: dist.ProcessGroup
) -> None:
    """Replace sparse gradients by their sums over the ranks ÷ `divisor`, in one message of the rows
    that each rank has; a collective, whose host waits for the GPU if the tables are on one.

    Args:
        tables: parameters with such gradients, the same on every rank.
        divisor: None if the gradients of this rank do not count.
    """
    rows = []
    for table in tables:
        if divisor is not None and table.grad is not None:
            scaled = (table.grad.detach() * (1 / divisor)).coalesce()
            rows.append((scaled.indices(), scaled.values()))
        else:
            no_values = table.detach().new_empty((0, *table.shape[1:]))
            rows.append((torch.empty((1, 0), dtype=torch.long), no_values))
    rows_by_rank = gather_values(rows, group, device=tables[0].device)
    for table, parts in zip(tables, zip(*rows_by_rank, strict=True), strict=True):
        indices, values = zip(*parts, strict=True)
        table.grad = torch.sparse_coo_tensor(
            torch.cat(indices, dim=1).to(table.device),
            torch.cat(values).to(table.device),
            table.shape,
            check_invariants=False,
        ).coalesce()
