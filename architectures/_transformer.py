"""Parts of the transformers here: layers, weights, sizes that options choose, and a synthetic text
that a model can learn.

Vaswani et al., "Attention Is All You Need" (2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from . import _options

MLP_RATIO = 4
"""Width of the hidden layer of an MLP, in widths of the states."""
INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights."""
ALPHABET, SUCCESSORS = 32, 2
"""Number of tokens that occur in the synthetic text, and of those that can follow a token."""
TEXT_SEED = 20_240_229


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Size of a transformer."""

    layers: int
    width: int
    heads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSize(Size):
    """Size of a transformer over tokens."""

    context: int
    """Number of tokens in a sequence."""
    vocabulary: int


AnySize = TypeVar("AnySize", bound=Size)


def choose_size(sizes: Mapping[str, AnySize], name: str, **given: int | None) -> AnySize:
    """The size of that name, with the given numbers in place of its own.

    Raises ValueError for a size that no model can have.
    """
    _options.expect_one_of("size", name, sizes)
    numbers = {option: number for option, number in given.items() if number is not None}
    chosen = replace(sizes[name], **numbers)
    _options.expect_at_least(1, **asdict(chosen))
    _options.expect_multiple("width", chosen.width, of=chosen.heads, called="heads")
    if isinstance(chosen, TextSize):
        # A letter more than the synthetic text has, for a mask.
        _options.expect_at_least(ALPHABET + 1, vocabulary=chosen.vocabulary)
    return chosen


def encoder(
    size: Size, *, dropout: float = 0.0, epsilon: float = 1e-5, norm_first: bool = True
) -> nn.TransformerEncoder:
    """Layers of attention over the sequence and an MLP over the width, each beside a shortcut, for
    states (n, tokens, width). Normalizations come first, or after the sum with the shortcut."""
    layer = nn.TransformerEncoderLayer(
        size.width,
        size.heads,
        MLP_RATIO * size.width,
        dropout,
        activation="gelu",
        layer_norm_eps=epsilon,
        batch_first=True,
        norm_first=norm_first,
    )
    return nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)


def initialize(model: nn.Module) -> None:
    """Draw all weights from one normal distribution, and set the biases to zero."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=INITIAL_DEVIATION)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def synthetic_text(n: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """`n` texts of `length` tokens, int64 (n, length), on generator's device, from a Markov chain.

    A model that has learned which two follow each token predicts the next one with a loss of log 2.
    The chain has a seed of its own, so that all batches of all processes have the same one.
    """
    device = generator.device
    rules = torch.Generator().manual_seed(TEXT_SEED)
    followers = torch.randint(ALPHABET, (ALPHABET, SUCCESSORS), generator=rules).to(device)
    choices = torch.randint(SUCCESSORS, (n, length - 1), generator=generator, device=device)
    text = [torch.randint(ALPHABET, (n,), generator=generator, device=device)]
    for choice in choices.unbind(dim=1):
        text.append(followers[text[-1], choice])
    return torch.stack(text, dim=1)
