"""Loss, batches and right predictions of classifiers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import _synthetic_images


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
        learned."""
        shape = (self.channels, self.image, self.image)
        return _synthetic_images.batch(n, generator, shape, self.classes)


class DigitClassifier(ImageClassifier):
    """Base class for models that return log-probabilities of ten digits."""

    default_dataset: str = "digits"
    channels: int = 1
    image: int = 28
    classes: int = 10

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean negative log-likelihood of the targets."""
        return F.nll_loss(outputs, targets)
