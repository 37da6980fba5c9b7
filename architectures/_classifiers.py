"""Loss, batches and right predictions of classifiers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

NOISE = 0.5
"""Standard deviation of the noise of synthetic images; their templates have standard deviation
1."""
TEMPLATE_SEED = 20_240_229
BLOCKS = 8
"""Blocks along a side of 32 pixels or more, if divisible by 8: a thousand templates take 1 MB."""
MIN_BLOCK = 4


class Classifier:
    """Base class for logits (n, …, classes) and as many classes, int64 (n, …)."""

    default_dataset: str = "synthetic"

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy over all targets."""
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def count_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Number of correct top-1 predictions; int64, 0-dimensional."""
        return (outputs.argmax(dim=-1) == targets).sum()


class ImageClassifier(Classifier):
    """Base class for square images; an architecture adds its name and its model."""

    item: str = "images"
    channels: int = 3
    image: int
    """Side of an image in pixels."""
    classes: int

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, float32 (n, channels, image, image), and classes, int64 (n,), that can be
        learned: a template for each class, plus noise.

        The templates are the same in all batches of all processes. They have blocks of equal
        pixels, not white noise: small convolution kernels see edges.
        """
        device, side = generator.device, self.image
        targets = torch.randint(self.classes, (n,), generator=generator, device=device)
        shape = (n, self.channels, side, side)
        images = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        images *= NOISE
        largest = max(MIN_BLOCK, side // BLOCKS)
        pixels = max(each for each in range(1, largest + 1) if side % each == 0)
        blocks = side // pixels
        templates = torch.randn(
            (self.classes, self.channels, blocks, 1, blocks, 1),
            generator=torch.Generator().manual_seed(TEMPLATE_SEED),
            device="cpu",
            dtype=torch.float32,
        )
        # In place: a second copy of thousands of photos would take gigabytes.
        as_blocks = images.view(n, self.channels, blocks, pixels, blocks, pixels)
        as_blocks += templates.to(device)[targets]
        return images, targets


class DigitClassifier(ImageClassifier):
    """Base class for models that return log-probabilities of ten digits."""

    default_dataset: str = "digits"
    channels: int = 1
    image: int = 28
    classes: int = 10

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean negative log-likelihood of the targets."""
        return F.nll_loss(outputs, targets)
