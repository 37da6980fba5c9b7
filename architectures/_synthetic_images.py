"""Synthetic images that a model can learn: one fixed template per class, plus noise."""

from __future__ import annotations

import torch

NOISE = 0.5
"""Standard deviation of the noise; the templates have standard deviation 1."""

_TEMPLATE_SEED = 20_240_229
_MIN_BLOCK = 4
_BLOCKS = 8
"""Blocks along a side of 32 pixels or more, if divisible by 8: a thousand templates take 1 MB."""


def batch(
    n: int, generator: torch.Generator, shape: tuple[int, int, int], classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`n` images, float32 (n, *shape), and their classes, int64 (n,), on generator's device.

    `shape` is (channels, height, width). Classes and noise come from `generator`. The templates
    come from a seed of their own, so that all batches of all processes show the same classes.
    """
    device = generator.device
    targets = torch.randint(classes, (n,), generator=generator, device=device)
    images = torch.randn((n, *shape), generator=generator, device=device, dtype=torch.float32)
    images *= NOISE
    _add(_templates(classes, shape).to(device)[targets], images)
    return images, targets


def _templates(classes: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """A value for each block: (classes, channels, rows, columns), on the CPU."""
    # Blocks of equal pixels, not white noise: small convolution kernels see edges.
    channels, *sides = shape
    coarse = (classes, channels, *(side // _block(side) for side in sides))
    generator = torch.Generator().manual_seed(_TEMPLATE_SEED)
    return torch.randn(coarse, generator=generator, device="cpu", dtype=torch.float32)


def _block(side: int) -> int:
    """Pixels along a block: the largest divisor of `side` up to an eighth of it, or up to 4."""
    largest = max(_MIN_BLOCK, side // _BLOCKS)
    return max(pixels for pixels in range(1, largest + 1) if side % pixels == 0)


def _add(coarse: torch.Tensor, images: torch.Tensor) -> None:
    """Add the templates in place: a second copy of thousands of photos would take gigabytes."""
    n, channels, height, width = images.shape
    rows, columns = coarse.shape[2:]
    blocks = images.view(n, channels, rows, height // rows, columns, width // columns)
    blocks += coarse[:, :, :, None, :, None]
