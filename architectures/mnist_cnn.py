"""The small convolutional network of the MNIST examples: computation-bound.

It does about 60 floating-point operations per image for every parameter, ten times as many as
`mlp`, so its gradients are cheap to exchange compared with computing them: 4.8 MB of float32 for
the 1,199,882 parameters of the default options.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from . import _options, _synthetic_images

POOLED_SIDE = 12
"""Side after pooling: 28 pixels less 2 for each convolution, halved."""


class Architecture:
    """Two convolutions and two fully connected layers on 28×28 images of ten classes.

    The layers have `width`, 2·`width`, 4·`width` and 10 outputs.
    """

    name: str = "mnist_cnn"
    item: str = "images"
    items_per_sample: int = 1
    default_dataset: str = "digits"

    def __init__(self, *, width: int = 32) -> None:
        _options.expect_at_least(1, width=width)
        self.width = width
        self.features = 2 * width * POOLED_SIDE**2

    def build_model(self) -> nn.Module:
        """A new model: images (n, 1, 28, 28) to log-probabilities (n, 10)."""
        return nn.Sequential(
            OrderedDict[str, nn.Module](
                conv1=nn.Conv2d(1, self.width, kernel_size=3),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(self.width, 2 * self.width, kernel_size=3),
                relu2=nn.ReLU(),
                pool=nn.MaxPool2d(2),
                dropout1=nn.Dropout2d(0.25),
                flatten=nn.Flatten(),
                fc1=nn.Linear(self.features, 4 * self.width),
                relu3=nn.ReLU(),
                dropout2=nn.Dropout(0.5),
                fc2=nn.Linear(4 * self.width, 10),
                log_softmax=nn.LogSoftmax(dim=1),
            )
        )

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
