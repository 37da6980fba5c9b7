"""A wide multilayer perceptron on MNIST images: communication-bound.

It does 6 floating-point operations per image for every parameter, the least that a layer without
weight sharing can do, so that for small batches most of a step is the exchange of the gradients:
7.5 MB of float32 for the 1,863,690 parameters of the default options.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import nn

from . import _options
from ._classifiers import DigitClassifier


class Architecture(DigitClassifier):
    """`layers` hidden layers of `width` units on 28×28 images of ten classes."""

    name: str = "mlp"

    def __init__(self, *, width: int = 1024, layers: int = 2) -> None:
        _options.expect_at_least(1, width=width, layers=layers)
        self.widths = (self.image**2, *[width] * layers, self.classes)

    def build_model(self) -> nn.Module:
        """A new model: images (n, 1, 28, 28) to log-probabilities (n, 10)."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for i, shape in enumerate(pairwise(self.widths), start=1):
            layers[f"fc{i}"] = nn.Linear(*shape)
            layers[f"relu{i}"] = nn.ReLU()
        layers.popitem()  # the last layer gives log-probabilities
        layers["log_softmax"] = nn.LogSoftmax(dim=1)
        return nn.Sequential(layers)
