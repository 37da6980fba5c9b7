"""BERT: an encoder that predicts masked tokens from the tokens before and after them.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
(2019), and its code, github.com/google-research/bert: layer normalization after each of attention
and MLP, learned positions and segments, GELU, dropout 0.1 (torch's layer has one more, inside the
MLP). 15 % of the tokens of every sequence are predicted; of these, 80 % are masked, 10 % are
replaced by others, 10 % are left.

Only the masked half of the pre-training is here, not the prediction of the next sentence. Of the
published 109,482,240 parameters of `bert:size=base`, 108,891,648 are here: the embeddings of
tokens, positions and segments and the 12 layers. The other 590,592 are in the pooler, which only
next-sentence prediction needs. The head that predicts the masked tokens (a layer, its norm, and the
biases of an output layer tied to the token embedding) adds 622,650: together 109,514,298, as in
BertForMaskedLM of Hugging Face's transformers.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from ._classifiers import Classifier
from ._transformer import TextSize, choose_size, encoder, initialize, synthetic_text

SEGMENTS = 2
NORM_EPSILON = 1e-12
TO_PREDICT = 0.15
"""Share of a sequence's tokens that are predicted."""
MASKED, EXCHANGED = 0.8, 0.1
"""Shares of the predicted tokens that are masked or exchanged; the rest are left as they are."""

SIZES = {
    "micro": TextSize(layers=4, width=256, heads=4, context=64, vocabulary=256),
    "base": TextSize(layers=12, width=768, heads=12, context=512, vocabulary=30_522),
}


class Encoder(nn.Module):
    """Tokens, int64 (n, ≤ context), to states (n, tokens, width)."""

    def __init__(self, size: TextSize, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Parameter(torch.empty(size.context, size.width))
        self.segments = nn.Parameter(torch.empty(SEGMENTS, size.width))
        self.norm = nn.LayerNorm(size.width, eps=NORM_EPSILON)
        self.dropout = nn.Dropout(dropout)
        self.layers = encoder(size, dropout=dropout, epsilon=NORM_EPSILON, norm_first=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = self.positions[: tokens.shape[1]] + self.segments[0]  # one sentence alone
        states = self.dropout(self.norm(self.tokens(tokens) + places))
        return self.layers(states)  # type: ignore[no-any-return]


class MaskedLanguageModel(nn.Module):
    """Tokens, int64 (n, context), and places among them, int64 (n, predicted), to the logits
    (n, predicted, vocabulary) of the tokens that belong there."""

    def __init__(self, size: TextSize, dropout: float) -> None:
        super().__init__()
        self.encoder = Encoder(size, dropout)
        self.head = nn.Sequential(
            nn.Linear(size.width, size.width),
            nn.GELU(),
            nn.LayerNorm(size.width, eps=NORM_EPSILON),
        )
        self.bias = nn.Parameter(torch.zeros(size.vocabulary))
        initialize(self)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        states = self.encoder(tokens)
        chosen_states = states.gather(1, places.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
        return F.linear(self.head(chosen_states), self.encoder.tokens.weight, self.bias)


class Architecture(Classifier):
    """BERT in two sizes; each number of a size can be overridden."""

    name: str = "bert"
    item: str = "tokens"

    def __init__(
        self,
        *,
        size: Literal["micro", "base"] = "micro",
        layers: int | None = None,
        width: int | None = None,
        heads: int | None = None,
        context: int | None = None,
        vocabulary: int | None = None,
        dropout: float = 0.1,
    ) -> None:
        """Numbers that are not given come from `size`. Raises ValueError for impossible ones."""
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout: got {dropout}, expected at least 0 and below 1")
        self.size = choose_size(
            SIZES,
            size,
            layers=layers,
            width=width,
            heads=heads,
            context=context,
            vocabulary=vocabulary,
        )
        self.dropout = dropout
        self.mask = self.size.vocabulary - 1
        """The mask token; it does not occur in the synthetic text."""
        self.predicted = max(1, int(TO_PREDICT * self.size.context))
        """Number of tokens to predict in every sequence."""
        self.items_per_sample: int = self.size.context

    def build_model(self) -> nn.Module:
        """A new model; see MaskedLanguageModel."""
        return MaskedLanguageModel(self.size, self.dropout)

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """A learnable batch: ((tokens, int64 (n, context), their places in ascending order, int64
        (n, predicted)), and the tokens that belong there, int64 (n, predicted))."""
        device = generator.device
        text = synthetic_text(n, self.size.context, generator)
        order = torch.rand(text.shape, generator=generator, device=device).argsort(dim=1)
        places = order[:, : self.predicted].sort(dim=1).values
        targets = text.gather(1, places)
        others = torch.randint(
            self.size.vocabulary, targets.shape, generator=generator, device=device
        )
        fate = torch.rand(targets.shape, generator=generator, device=device)
        shown = torch.where(fate < MASKED + EXCHANGED, others, targets)
        shown = torch.where(fate < MASKED, self.mask, shown)
        return (text.scatter(1, places, shown), places), targets
