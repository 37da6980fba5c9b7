"""A wide multilayer perceptron on MNIST images: communication-bound.

It does 6 floating-point operations per image for every parameter, the least that a layer without
weight sharing can do, so that for small batches most of a step is the exchange of 7.5 MB of
float32 gradients.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from architectures import _flops, _synthetic_images

PIXELS = 784
HIDDEN = 1024
CLASSES = 10

PARAMETERS = 1_863_690
"""803,840 + 1,049,600 in the hidden layers, 10,250 in the output layer."""

FORWARD_FLOPS = (
    _flops.linear(PIXELS, HIDDEN) + _flops.linear(HIDDEN, HIDDEN) + _flops.linear(HIDDEN, CLASSES)
)
"""For one image."""


class Architecture:
    """Two hidden layers of 1024 units on 28×28 images of ten classes."""

    name: str = "mlp"
    item: str = "images"
    default_dataset: str = "digits"
    flops_per_item: float = _flops.training(FORWARD_FLOPS)

    def build_model(self) -> nn.Module:
        """A new model: images (n, 1, 28, 28) to log-probabilities (n, 10)."""
        return nn.Sequential(
            OrderedDict[str, nn.Module](
                flatten=nn.Flatten(),
                fc1=nn.Linear(PIXELS, HIDDEN),
                relu1=nn.ReLU(),
                fc2=nn.Linear(HIDDEN, HIDDEN),
                relu2=nn.ReLU(),
                fc3=nn.Linear(HIDDEN, CLASSES),
                log_softmax=nn.LogSoftmax(dim=1),
            )
        )

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, float32 (n, 1, 28, 28), and classes, int64 (n,), that can be learnt."""
        return _synthetic_images.batch(n, generator)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean negative log-likelihood of the targets."""
        return F.nll_loss(outputs, targets)

    def count_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How many images have their class as the likeliest; int64, 0-dimensional."""
        return (outputs.argmax(dim=1) == targets).sum()
