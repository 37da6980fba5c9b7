"""VGG-16: communication-bound, with 553 MB of gradients, nine tenths of them in three layers.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition"
(2014), arXiv:1409.1556: configuration D of their table 1, with dropout of 0.5 behind the first two
fully connected layers; 138 million parameters in their table 2, 138,357,544 in torchvision's
documentation. Different from the paper: weights are initialized as in He et al. 2015,
arXiv:1502.01852, since the paper starts its deep networks from trained shallower ones; and images
of other sizes than 224 and narrower hidden layers are possible (`vgg16:image=32,hidden=512`), for
small machines and tests.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from . import _options
from ._classifiers import ImageClassifier

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and 3×3 convolutions of each stage; a pooling that halves the side ends each."""
SHRINKING = 32
"""Factor by which the five poolings shrink a side."""
OUTPUT_DEVIATION = 0.01
"""Standard deviation of the last layer's initial weights, as in torchvision; no ReLU follows this
layer."""


class Architecture(ImageClassifier):
    """Thirteen convolutions and three fully connected layers on square color images.

    `image` is the side in pixels, a multiple of 32; `hidden` the width of the first two fully
    connected layers.
    """

    name: str = "vgg16"

    def __init__(self, *, image: int = 224, classes: int = 1000, hidden: int = 4096) -> None:
        _options.expect_multiple("image", image, of=SHRINKING)
        _options.expect_at_least(1, classes=classes, hidden=hidden)
        self.image = image
        self.classes = classes
        self.hidden = hidden

    def build_model(self) -> nn.Module:
        """A new model: images (n, 3, image, image) to logits (n, classes)."""
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        inputs = 3
        for stage, (channels, convolutions) in enumerate(STAGES, start=1):
            for i in range(1, convolutions + 1):
                layers[f"conv{stage}_{i}"] = nn.Conv2d(inputs, channels, 3, padding=1)
                layers[f"relu{stage}_{i}"] = nn.ReLU()
                inputs = channels
            layers[f"pool{stage}"] = nn.MaxPool2d(2)
        layers["flatten"] = nn.Flatten()
        features = inputs * (self.image // SHRINKING) ** 2
        for i in (6, 7):
            layers[f"fc{i}"] = nn.Linear(features if i == 6 else self.hidden, self.hidden)
            layers[f"relu{i}"] = nn.ReLU()
            layers[f"dropout{i}"] = nn.Dropout(0.5)
        layers["fc8"] = nn.Linear(self.hidden, self.classes)
        model = nn.Sequential(layers)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name == "fc8.weight":
                nn.init.normal_(parameter, std=OUTPUT_DEVIATION)
            else:
                nn.init.kaiming_normal_(parameter, nonlinearity="relu")
        return model
