"""FT-Transformer: attention over the features of a table's row.

Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data" (2021), with the sizes of its
default configuration: every feature becomes a token, its value times a learned vector plus a
learned bias; the prediction is read from an extra token, CLS. Layer normalization before attention
and MLP, but not before the first attention; ReGLU in the MLP; dropout of the attention 0.2 and of
the MLP 0.1. Features are numbers; categories would be embeddings beside them.

With the 100 features of the paper's table of sizes it has 930,241 parameters, 929,664 without the
head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from . import _attention, _options, _synthetic_rows

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
        states = states + self.projection(_attention.attend(packed, self.heads, dropout=dropped))
        return states + self.mlp(self.mlp_norm(states))  # type: ignore[no-any-return]


class FTTransformer(nn.Module):
    """Rows (n, features) to logits (n, classes), or to one number each, (n,)."""

    def __init__(self, *, features: int, outputs: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokenizer = Tokenizer(features, width)
        self.blocks = nn.Sequential(
            *(Block(width, heads, first=layer == 0) for layer in range(layers))
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        cls = self.blocks(self.tokenizer(rows))[:, 0]
        outputs: torch.Tensor = self.head(cls)
        return outputs.squeeze(1) if outputs.shape[1] == 1 else outputs


class Architecture:
    """Three layers of width 192."""

    name: str = "tabular"
    item: str = "rows"
    default_dataset: str = "synthetic"

    def __init__(
        self,
        *,
        features: int = 30,
        classes: int = 2,
        layers: int = 3,
        width: int = 192,
        heads: int = 8,
    ) -> None:
        """A model of one class predicts a number. Raises ValueError for impossible options."""
        self.features, self.classes = features, classes
        self.layers, self.width, self.heads = layers, width, heads
        _options.expect_at_least(
            1, features=features, classes=classes, layers=layers, width=width, heads=heads
        )
        _options.expect_multiple("width", width, of=heads)
        if classes > 1:
            self.count_correct = _count_correct  # a number is hardly ever exactly right

    def build_model(self) -> nn.Module:
        """A new model; see FTTransformer."""
        return FTTransformer(
            features=self.features,
            outputs=self.classes,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
        )

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A learnable batch: rows, float32 (n, features), and their classes, int64 (n,), or
        numbers, float32 (n,)."""
        if self.classes == 1:
            return _synthetic_rows.of_numbers(n, generator, features=self.features)
        return _synthetic_rows.of_classes(
            n, generator, features=self.features, classes=self.classes
        )

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of the classes, or the mean squared error of the numbers."""
        if self.classes == 1:
            return F.mse_loss(outputs, targets)
        return F.cross_entropy(outputs, targets)


def _count_correct(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Number of correct top-1 predictions; int64, 0-dimensional."""
    return (outputs.argmax(dim=1) == targets).sum()


def hidden(width: int) -> int:
    """Units inside the gated MLP, such that it has as many weights as a plain one of twice the
    width."""
    return width * 4 // 3
