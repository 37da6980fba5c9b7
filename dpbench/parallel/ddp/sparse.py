"""Embeddings with sparse gradients: which they are, and how ranks add their rows."""

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


def sum_rows(
    gradients: Mapping[int, Tensor],
    parameters: Mapping[int, nn.Parameter],
    group: dist.ProcessGroup,
) -> dict[int, Tensor]:
    """Add sparse gradients over the ranks, in one message of the rows that each has; a collective.

    Args:
        gradients: those that this rank has, by index.
        parameters: all with such gradients, by index; the same on every rank.
        group: the ranks.
    """
    rows = {index: gradient.coalesce() for index, gradient in gradients.items()}
    mine = {index: [each.indices(), each.values()] for index, each in rows.items()}
    device = next(iter(parameters.values())).device
    everyone = gather_values(mine, group, device=device)
    sums = {}
    for index, parameter in parameters.items():
        weight = parameter.detach()
        none = [torch.empty((1, 0), dtype=torch.long), weight.new_empty((0, *weight.shape[1:]))]
        held = [none, *(rank[index] for rank in everyone if index in rank)]
        indices, values = zip(*held, strict=True)
        sums[index] = torch.sparse_coo_tensor(
            torch.cat([part.to(weight.device) for part in indices], dim=1),
            torch.cat([part.to(weight.device) for part in values]),
            weight.shape,
            check_invariants=False,
        ).coalesce()
    return sums
