"""Batches and loss that all classifiers of square color images share."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import _synthetic_images


class ImageClassifier:
    """Base class; an architecture adds its name and its model."""

    item: str = "images"
    items_per_sample: int = 1
    default_dataset: str = "synthetic"

    image: int
    """Side of an image in pixels."""
    classes: int

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, float32 (n, 3, image, image), and classes, int64 (n,), that can be learned."""
        return _synthetic_images.batch(n, generator, (3, self.image, self.image), self.classes)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of the targets."""
        return F.cross_entropy(outputs, targets)

    def count_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Number of correct top-1 predictions; int64, 0-dimensional."""
        return (outputs.argmax(dim=1) == targets).sum()
