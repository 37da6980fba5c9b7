"""The small convolutional network of the MNIST examples: computation-bound.

It does about 60 floating-point operations per image for every parameter, ten times as many as
`mlp`, so its gradients are cheap to exchange compared with computing them: 4.8 MB of float32 for
the 1,199,882 parameters of the default options.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from . import _options
from ._classifiers import DigitClassifier

POOLED_SIDE = 12
"""Side after pooling: 28 pixels less 2 for each convolution, halved."""


class Architecture(DigitClassifier):
    """Two convolutions and two fully connected layers on 28×28 images of ten classes.

    The layers have `width`, 2·`width`, 4·`width` and 10 outputs.
    """

    name: str = "mnist_cnn"

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
                fc2=nn.Linear(4 * self.width, self.classes),
                log_softmax=nn.LogSoftmax(dim=1),
            )
        )
