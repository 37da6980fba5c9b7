"""ResNets: computation-bound, with batch normalization; 45 MB of gradients by default.

He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition" (2015), arXiv:1512.03385:
the blocks and widths of their table 1. Images of 224×224 enter by the stem of that table, those of
32×32 by the one of their section 4.2 for CIFAR, a single 3×3 convolution of stride 1. A shortcut
that changes shape is a 1×1 convolution (their option B). In a bottleneck the 3×3 convolution has
the stride, not the first 1×1 (Goyal et al. 2017, arXiv:1706.02677, section 5.1), as in
torchvision, whose documentation gives the parameters at 224×224 and 1000 classes: 11,689,512,
21,797,672, 25,557,032, 44,549,160 and 60,192,808. Weights start as torch's layers do.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from . import _options
from ._classifiers import ImageClassifier

BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Number of blocks in each stage, by depth; basic blocks up to 34, bottlenecks from 50."""
WIDTHS = (64, 128, 256, 512)
"""Width of the blocks of each stage; each stage but the first halves the image's side."""
EXPANSION = 4
"""Output channels of a bottleneck, in its widths."""
CLASSES = {32: 10, 224: 1000}
"""Number of classes, by the side of an image: those of CIFAR-10 and ImageNet."""


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution and its batch normalization."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut; in a bottleneck a 3×3 one between two 1×1, which take
    the channels to a quarter and back."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = EXPANSION * width if bottleneck else width
        if bottleneck:
            self.convolutions = nn.Sequential(
                _convolution(inputs, width, 1),
                nn.ReLU(),
                _convolution(width, width, 3, stride),
                nn.ReLU(),
                _convolution(width, outputs, 1),
            )
        else:
            self.convolutions = nn.Sequential(
                _convolution(inputs, width, 3, stride), nn.ReLU(), _convolution(width, width, 3)
            )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = _convolution(inputs, outputs, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.relu(self.convolutions(images) + self.shortcut(images))


class Architecture(ImageClassifier):
    """A residual network of `depth` layers on square color images of `image` pixels a side.

    Unless `classes` are given, they are the 10 of CIFAR-10 at 32 pixels and the 1000 of ImageNet at
    224.
    """

    name: str = "resnet"

    def __init__(self, *, depth: int = 18, image: int = 32, classes: int | None = None) -> None:
        _options.expect_one_of("depth", depth, BLOCKS)
        _options.expect_one_of("image", image, CLASSES)
        _options.expect_at_least(1, classes=classes)
        self.depth = depth
        self.image = image
        self.classes = classes or CLASSES[image]

    def build_model(self) -> nn.Module:
        """A new model: images (n, 3, image, image) to logits (n, classes)."""
        channels, is_small = WIDTHS[0], self.image == 32
        stem = _convolution(3, channels, 3) if is_small else _convolution(3, channels, 7, 2)
        layers = OrderedDict[str, nn.Module](stem=stem, relu=nn.ReLU())
        if not is_small:
            layers["maxpool"] = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        bottleneck = self.depth >= 50
        for number, (width, blocks) in enumerate(zip(WIDTHS, BLOCKS[self.depth], strict=True)):
            stage = nn.Sequential()
            for block in range(blocks):
                stride = 2 if number and not block else 1
                stage.append(Block(channels, width, stride, bottleneck=bottleneck))
                channels = EXPANSION * width if bottleneck else width
            layers[f"stage{number + 1}"] = stage
        layers["pool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["fc"] = nn.Linear(channels, self.classes)
        return nn.Sequential(layers)
