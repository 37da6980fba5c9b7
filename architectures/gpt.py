"""GPT-2: a decoder-only transformer that predicts the next token of a sequence.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): layer normalization
before each of attention and MLP, learned positions, GELU, the output layer tied to the token
embedding, weights drawn with standard deviation 0.02. `gpt:size=gpt2` has the 124,439,808
parameters of the published checkpoint "gpt2".

There are three differences, none of which changes the work of a step by a thousandth: there is no
dropout; GELU is exact, where the published code approximates it with tanh; and the projections onto
the shortcuts are initialized like all other weights, where the paper divides their deviation by
√(2·layers).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from ._classifiers import Classifier
from ._transformer import TextSize, choose_size, encoder, initialize, synthetic_text

SIZES = {
    "nano": TextSize(layers=3, width=48, heads=3, context=64, vocabulary=256),
    "micro": TextSize(layers=4, width=256, heads=4, context=64, vocabulary=256),
    "gpt2": TextSize(layers=12, width=768, heads=12, context=1024, vocabulary=50_257),
}


class Decoder(nn.Module):
    """Tokens, int64 (n, ≤ context), to logits (n, tokens, vocabulary)."""

    def __init__(self, size: TextSize) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Parameter(torch.empty(size.context, size.width))
        self.blocks = encoder(size)
        self.norm = nn.LayerNorm(size.width)
        initialize(self)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        states = self.tokens(tokens) + self.positions[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, states.device, states.dtype)
        states = self.norm(self.blocks(states, mask, is_causal=True))
        return F.linear(states, self.tokens.weight)  # tied: one matrix reads and writes tokens


class Architecture(Classifier):
    """GPT-2 in three sizes; each number of a size can be overridden."""

    name: str = "gpt"
    item: str = "tokens"

    def __init__(
        self,
        *,
        size: Literal["nano", "micro", "gpt2"] = "micro",
        layers: int | None = None,
        width: int | None = None,
        heads: int | None = None,
        context: int | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """Numbers that are not given come from `size`. Raises ValueError for impossible ones."""
        self.size = choose_size(
            SIZES,
            size,
            layers=layers,
            width=width,
            heads=heads,
            context=context,
            vocabulary=vocabulary,
        )
        self.items_per_sample: int = self.size.context

    def build_model(self) -> nn.Module:
        """A new model: tokens, int64 (n, context), to logits (n, context, vocabulary)."""
        return Decoder(self.size)

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A learnable batch: tokens and those that follow each, both int64 (n, context)."""
        text = synthetic_text(n, self.size.context + 1, generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()
