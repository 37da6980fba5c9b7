"""A small decoder-only transformer that predicts the next token of a sequence.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), GPT-2: layer
normalisation before each of attention and MLP, learnt positions, GELU, the output layer tied to
the token embedding, weights drawn with standard deviation 0.02.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from architectures import _flops

VOCABULARY = 256
CONTEXT = 64
"""Tokens of a sequence."""
LAYERS = 4
WIDTH = 256
HEADS = 4
MLP_RATIO = 4

PARAMETERS = 3_241_472
"""65,536 in the tokens, 16,384 in the positions, 789,760 in each layer, 512 in the last norm."""

INITIAL_DEVIATION = 0.02
SUCCESSORS = 2
"""Tokens that can follow a token in synthetic text."""
ALPHABET = 32
"""Tokens that occur in synthetic text."""
_TEXT_SEED = 20_240_229


class Block(nn.Module):
    """Causal attention over the sequence and an MLP over the width, each beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, MLP_RATIO * WIDTH), nn.GELU(), nn.Linear(MLP_RATIO * WIDTH, WIDTH)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = states + self._attend(self.attention_norm(states))
        return states + self.mlp(self.mlp_norm(states))  # type: ignore[no-any-return]

    def _attend(self, states: torch.Tensor) -> torch.Tensor:
        # (n, tokens, 3·width) to three of (n, heads, tokens, width/heads), and back.
        packed = self.query_key_value(states).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Tokens, int64 (n, ≤ CONTEXT), to logits (n, tokens, VOCABULARY)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.empty(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=INITIAL_DEVIATION)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        states = self.norm(self.blocks(states))
        return F.linear(states, self.tokens.weight)  # tied: one matrix reads and writes tokens


FORWARD_FLOPS = CONTEXT * (
    LAYERS
    * (
        _flops.linear(WIDTH, 3 * WIDTH)
        + _flops.linear(WIDTH, WIDTH)
        + 2 * _flops.linear(WIDTH, MLP_RATIO * WIDTH)
        + 2 * _flops.linear(CONTEXT, WIDTH)  # scores and mixture, as if nothing were masked
    )
    + _flops.linear(WIDTH, VOCABULARY)
)
"""For one sequence."""


class Architecture:
    """Four layers of width 256 on sequences of 64 tokens out of 256."""

    name: str = "transformer"
    item: str = "sequences"
    default_dataset: str = "synthetic"
    flops_per_item: float = _flops.training(FORWARD_FLOPS)

    def build_model(self) -> nn.Module:
        """A new model: tokens, int64 (n, 64), to logits (n, 64, 256)."""
        return Decoder()

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, int64 (n, 64), and those that follow each, int64 (n, 64), that can be learnt.

        A Markov chain: any of two tokens follows a token, so that a model that has learnt them
        has a loss of log 2. The chain has a seed of its own, so that all processes have the same.
        """
        device = generator.device
        rules = torch.Generator().manual_seed(_TEXT_SEED)
        followers = torch.randint(ALPHABET, (ALPHABET, SUCCESSORS), generator=rules).to(device)
        choices = torch.randint(SUCCESSORS, (n, CONTEXT), generator=generator, device=device)
        text = [torch.randint(ALPHABET, (n,), generator=generator, device=device)]
        for choice in choices.unbind(dim=1):
            text.append(followers[text[-1], choice])
        sequences = torch.stack(text, dim=1)
        return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy over all tokens of all sequences."""
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def count_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How many tokens were the likeliest at their place; int64, 0-dimensional."""
        return (outputs.argmax(dim=-1) == targets).sum()
