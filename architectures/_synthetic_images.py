"""Synthetic images that a model can learn: one fixed template per class, plus noise."""

from __future__ import annotations

import torch

CLASSES = 10
DIGIT = (1, 28, 28)
"""Channels and pixels of an image of MNIST."""
NOISE = 0.5
"""Standard deviation of the noise; the templates have standard deviation 1."""

_TEMPLATE_SEED = 20_240_229
_BLOCK = 4


def batch(
    n: int, generator: torch.Generator, shape: tuple[int, int, int] = DIGIT
) -> tuple[torch.Tensor, torch.Tensor]:
    """`n` images, float32 (n, *shape), and their classes, int64 (n,), on generator's device.

    Classes and noise come from `generator`. The templates come from a seed of their own, so that
    all batches of all processes show the same ten classes. Height and width of `shape`, which is
    (channels, height, width), are multiples of 4.
    """
    device = generator.device
    targets = torch.randint(CLASSES, (n,), generator=generator, device=device)
    noise = torch.randn((n, *shape), generator=generator, device=device, dtype=torch.float32)
    return _templates(shape).to(device)[targets] + NOISE * noise, targets


def _templates(shape: tuple[int, int, int]) -> torch.Tensor:
    # Blocks of equal pixels, not white noise: small convolution kernels see edges.
    channels, height, width = shape
    generator = torch.Generator().manual_seed(_TEMPLATE_SEED)
    coarse = torch.randn(
        (CLASSES, channels, height // _BLOCK, width // _BLOCK),
        generator=generator,
        dtype=torch.float32,
    )
    return coarse.repeat_interleave(_BLOCK, dim=2).repeat_interleave(_BLOCK, dim=3)
