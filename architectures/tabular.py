"""FT-Transformer: attention over the features of a table's row.

Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data" (2021), with the sizes of its
default configuration: every feature becomes a token, its value times a learned vector plus a
learned bias; the prediction is read from an extra token, CLS. Layer normalization before attention
and MLP, but not before the first attention; ReGLU in the MLP; dropout of the attention 0.2 and of
the MLP 0.1. Features are numbers; categories would be embeddings beside them.

With the 100 features of the paper's table of sizes it has 929,664 parameters without the head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from . import _options, _synthetic_rows
from ._classifiers import Classifier
from ._transformer import attend

ATTENTION_DROPOUT, MLP_DROPOUT = 0.2, 0.1


class Tokenizer(nn.Module):
    """Rows (n, features) to tokens (n, 1 + features, width); CLS is the first."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.empty(width))
        self.weight = nn.Parameter(torch.empty(features, width))
        self.bias = nn.Parameter(torch.empty(features, width))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        tokens = rows.unsqueeze(-1) * self.weight + self.bias
        return torch.cat([self.cls.expand(len(rows), 1, -1), tokens], dim=1)


class ReGLU(nn.Module):
    """First half of the width, gated by the ReLU of the second half."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        value, gate = states.chunk(2, dim=-1)
        return value * F.relu(gate)


class Block(nn.Module):
    """Attention over the features and an MLP over the width, each beside a shortcut."""

    def __init__(self, width: int, heads: int, *, first: bool) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.Identity() if first else nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * hidden(width)),
            ReGLU(),
            nn.Dropout(MLP_DROPOUT),
            nn.Linear(hidden(width), width),
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        packed = self.query_key_value(self.attention_norm(states))
        dropped = ATTENTION_DROPOUT if self.training else 0.0
        states = states + self.projection(attend(packed, self.heads, dropout=dropped))
        return states + self.mlp(self.mlp_norm(states))  # type: ignore[no-any-return]


class FTTransformer(nn.Module):
    """Rows (n, features) to logits (n, classes)."""

    def __init__(self, *, features: int, classes: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokenizer = Tokenizer(features, width)
        self.blocks = nn.Sequential(
            *(Block(width, heads, first=layer == 0) for layer in range(layers))
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.tokenizer(rows))[:, 0])  # type: ignore[no-any-return]


class Architecture(Classifier):
    """Three layers of width 192."""

    name: str = "tabular"
    item: str = "rows"

    def __init__(
        self,
        *,
        features: int = 30,
        classes: int = 2,
        layers: int = 3,
        width: int = 192,
        heads: int = 8,
    ) -> None:
        """Raises ValueError for options that no model can have."""
        self.features, self.classes = features, classes
        self.layers, self.width, self.heads = layers, width, heads
        _options.expect_at_least(1, features=features, layers=layers, width=width, heads=heads)
        _options.expect_at_least(2, classes=classes)
        _options.expect_multiple("width", width, of=heads, called="heads")

    def build_model(self) -> nn.Module:
        """A new model; see FTTransformer."""
        return FTTransformer(
            features=self.features,
            classes=self.classes,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
        )

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A learnable batch: rows, float32 (n, features), and their classes, int64 (n,)."""
        return _synthetic_rows.of_classes(
            n, generator, features=self.features, classes=self.classes
        )


def hidden(width: int) -> int:
    """Units inside the gated MLP, such that it has as many weights as a plain one of twice the
    width."""
    return width * 4 // 3
