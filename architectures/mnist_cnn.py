"""The small convolutional network of the MNIST examples: computation-bound.

It does about 60 floating-point operations per image for every parameter, ten times as many as
`mlp`, so its gradients are cheap to exchange for the work that they take.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from architectures import _flops, _synthetic_images

PARAMETERS = 1_199_882
"""320 + 18,496 in the convolutions, 1,179,776 + 1,290 in the fully connected layers."""

FORWARD_FLOPS = (
    _flops.convolution(1, 32, kernel=3, output_side=26)
    + _flops.convolution(32, 64, kernel=3, output_side=24)
    + _flops.linear(9216, 128)
    + _flops.linear(128, 10)
)
"""For one image."""


class Architecture:
    """Two convolutions and two fully connected layers on 28×28 images of ten classes."""

    name: str = "mnist_cnn"
    item: str = "images"
    default_dataset: str = "digits"
    flops_per_item: float = _flops.training(FORWARD_FLOPS)

    def build_model(self) -> nn.Module:
        """A new model: images (n, 1, 28, 28) to log-probabilities (n, 10)."""
        return nn.Sequential(
            OrderedDict[str, nn.Module](
                conv1=nn.Conv2d(1, 32, kernel_size=3),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(32, 64, kernel_size=3),
                relu2=nn.ReLU(),
                pool=nn.MaxPool2d(2),
                dropout1=nn.Dropout2d(0.25),
                flatten=nn.Flatten(),
                fc1=nn.Linear(9216, 128),
                relu3=nn.ReLU(),
                dropout2=nn.Dropout(0.5),
                fc2=nn.Linear(128, 10),
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
