"""DLRM: predicts clicks. Mostly large embedding tables, of which each row uses a few lines.

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems"
(2019), with the layers that the authors' code, github.com/facebookresearch/dlrm, takes for the
Criteo Kaggle set: an MLP 13-512-256-64-16 for 13 dense features, 26 tables of embeddings of width
16, the dot products of every two of these 27 vectors, an MLP 512-256-1 over them; initial values as
in the same code. The published tables have 33,762,577 rows together, which is 540,677,217
parameters; here each has 40,000, so that two processes on a small machine hold them: 17,115,985
parameters, 97 % of them in the tables, for 0.8 MFLOP forward. So most of a step is the exchange of
gradients, unless `sparse` restricts them to the rows that were looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from . import _options

BOTTOM = (512, 256, 64)
"""Outputs of the bottom MLP's layers but the last, whose width is that of the embeddings."""
TOP = (512, 256, 1)
RULE_SEED = 20_240_229
"""Seed of what makes users click, so that all batches of all processes follow the same rule."""


class DLRM(nn.Module):
    """Dense features, float32 (n, dense), and a row of each table, int64 (n, tables), to the
    logits of a click, (n,)."""

    def __init__(self, *, dense: int, rows: Sequence[int], width: int, sparse: bool) -> None:
        super().__init__()
        self.bottom = _mlp((dense, *BOTTOM, width))
        self.bottom.append(nn.ReLU())
        tables = [nn.Embedding(count, width, sparse=sparse) for count in rows]
        for table in tables:
            bound = table.num_embeddings**-0.5
            nn.init.uniform_(table.weight, -bound, bound)
        self.tables = nn.ModuleList(tables)
        pairs = len(rows) * (len(rows) + 1) // 2
        self.top = _mlp((width + pairs, *TOP))

    def forward(self, dense: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        features = self.bottom(dense)
        looked_up = [table(indices[:, column]) for column, table in enumerate(self.tables)]
        vectors = torch.stack([features, *looked_up], dim=1)  # (n, 1 + tables, width)
        products = vectors @ vectors.transpose(1, 2)
        # Skip the diagonal (a vector with itself) and the half that repeats the other.
        first, second = torch.tril_indices(
            len(vectors[0]), len(vectors[0]), offset=-1, device=dense.device
        )
        interactions = products[:, first, second]
        logits: torch.Tensor = self.top(torch.cat([features, interactions], dim=1))
        return logits.squeeze(1)


class Architecture:
    """DLRM; by default 26 tables of 40,000 rows, and 13 dense features."""

    name: str = "dlrm"
    item: str = "rows"
    default_dataset: str = "synthetic"

    def __init__(
        self,
        *,
        dense: int = 13,
        tables: int = 26,
        rows: int = 40_000,
        width: int = 16,
        sparse: bool = False,
    ) -> None:
        """Each table has `rows` rows; `sparse` gradients hold only the rows that were looked up.
        Raises ValueError for what no model can have."""
        self.dense, self.tables, self.rows, self.width = dense, tables, rows, width
        self.sparse = sparse
        _options.expect_at_least(1, dense=dense, tables=tables, rows=rows, width=width)

    def build_model(self) -> nn.Module:
        """A new model; see DLRM."""
        rows = [self.rows] * self.tables
        return DLRM(dense=self.dense, rows=rows, width=self.width, sparse=self.sparse)

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """A learnable batch: ((dense features, float32 (n, dense), rows of the tables, int64 (n,
        tables)), clicked, float32 (n,) of 0 and 1).

        A click depends on the dense features and on whether the rows are even or odd. Low rows are
        frequent and high ones rare, as with real users and products: the probability of row k of r
        or a lower one is (k/r)^(1/3).
        """
        device = generator.device
        shape = (n, self.dense)
        dense = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        shape = (n, self.tables)
        uniform = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        indices = (uniform**3 * self.rows).long()
        likes = dense @ _rule(self.dense).to(device)
        likes += (1 - 2 * (indices % 2)).float() @ _rule(self.tables).to(device)
        return (dense, indices), (likes > 0).float()

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean binary cross-entropy."""
        return F.binary_cross_entropy_with_logits(outputs, targets)

    def count_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How many rows were classified correctly as clicked or not; int64, 0-dimensional."""
        return ((outputs > 0) == (targets > 0)).sum()


def _rule(size: int) -> torch.Tensor:
    """The weight of each of `size` features, float32; the sum over all has deviation 1."""
    generator = torch.Generator().manual_seed(RULE_SEED)
    weights = torch.randn(size, generator=generator, dtype=torch.float32)
    return weights.div_(size**0.5)


def _mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Fully connected layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layer = nn.Linear(inputs, outputs)
        nn.init.normal_(layer.weight, std=(2 / (inputs + outputs)) ** 0.5)
        nn.init.normal_(layer.bias, std=outputs**-0.5)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
