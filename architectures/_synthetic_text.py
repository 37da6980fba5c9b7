"""Synthetic text that a model can learn: a Markov chain with two possible successors per letter."""

from __future__ import annotations

import torch

ALPHABET = 32
"""Number of tokens that occur."""
SUCCESSORS = 2
"""Number of tokens that can follow a token."""

_SEED = 20_240_229


def chain(n: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """`n` texts of `length` tokens, int64 (n, length), on generator's device.

    A model that has learned which two follow each token predicts the next one with a loss of log 2.
    The chain has a seed of its own, so that all batches of all processes have the same one.
    """
    device = generator.device
    rules = torch.Generator().manual_seed(_SEED)
    followers = torch.randint(ALPHABET, (ALPHABET, SUCCESSORS), generator=rules).to(device)
    choices = torch.randint(SUCCESSORS, (n, length - 1), generator=generator, device=device)
    text = [torch.randint(ALPHABET, (n,), generator=generator, device=device)]
    for choice in choices.unbind(dim=1):
        text.append(followers[text[-1], choice])
    return torch.stack(text, dim=1)
