"""Synthetic images that a model can learn: one fixed template per class, plus noise."""

from __future__ import annotations

import torch

CLASSES = 10
SIDE = 28
"""Pixels of an edge, as in MNIST."""
NOISE = 0.5
"""Standard deviation of the noise; the templates have standard deviation 1."""

_TEMPLATE_SEED = 20_240_229
_BLOCK = 4


def batch(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """`n` images, float32 (n, 1, 28, 28), and their classes, int64 (n,), on generator's device.

    Classes and noise come from `generator`. The templates come from a seed of their own, so that
    all batches of all processes show the same ten classes.
    """
    device = generator.device
    targets = torch.randint(CLASSES, (n,), generator=generator, device=device)
    noise = torch.randn((n, 1, SIDE, SIDE), generator=generator, device=device, dtype=torch.float32)
    return _templates().to(device)[targets] + NOISE * noise, targets


def _templates() -> torch.Tensor:
    # Blocks of equal pixels, not white noise: small convolution kernels see edges.
    generator = torch.Generator().manual_seed(_TEMPLATE_SEED)
    side = SIDE // _BLOCK
    coarse = torch.randn((CLASSES, 1, side, side), generator=generator, dtype=torch.float32)
    return coarse.repeat_interleave(_BLOCK, dim=2).repeat_interleave(_BLOCK, dim=3)
