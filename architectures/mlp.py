"""A wide multilayer perceptron on MNIST images: communication-bound.

It does 6 floating-point operations per image for every parameter, the least that a layer without
weight sharing can do, so that for small batches most of a step is the exchange of the gradients:
7.5 MB of float32 for the 1,863,690 parameters of the default options.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from . import _options, _synthetic_images

PIXELS = 784
CLASSES = 10


class Architecture:
    """`layers` hidden layers of `width` units on 28×28 images of ten classes."""

    name: str = "mlp"
    item: str = "images"
    items_per_sample: int = 1
    default_dataset: str = "digits"

    def __init__(self, *, width: int = 1024, layers: int = 2) -> None:
        _options.expect_at_least(1, width=width, layers=layers)
        self.widths = (PIXELS, *[width] * layers, CLASSES)

    def build_model(self) -> nn.Module:
        """A new model: images (n, 1, 28, 28) to log-probabilities (n, 10)."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for i, shape in enumerate(pairwise(self.widths), start=1):
            layers[f"fc{i}"] = nn.Linear(*shape)
            layers[f"relu{i}"] = nn.ReLU()
        layers.popitem()  # the last layer gives log-probabilities
        layers["log_softmax"] = nn.LogSoftmax(dim=1)
        return nn.Sequential(layers)

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, float32 (n, 1, 28, 28), and classes, int64 (n,), that can be learned."""
        return _synthetic_images.batch(n, generator)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean negative log-likelihood of the targets."""
        return F.nll_loss(outputs, targets)

    def count_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Number of correct top-1 predictions; int64, 0-dimensional."""
        return (outputs.argmax(dim=1) == targets).sum()
