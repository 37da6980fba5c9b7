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
from collections.abc import Iterator

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
CLASSES = {32: 10, 224: 1000}
"""Number of classes, by the side of an image: those of CIFAR-10 and ImageNet."""


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    EXPANSION = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.bn1(self.conv1(images)))
        return F.relu(self.bn2(self.conv2(inner)) + self.shortcut(images))


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1, which take the channels to a quarter and back."""

    EXPANSION = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.bn1(self.conv1(images)))
        inner = F.relu(self.bn2(self.conv2(inner)))
        return F.relu(self.bn3(self.conv3(inner)) + self.shortcut(images))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _block(depth: int) -> type[BasicBlock | Bottleneck]:
    return BasicBlock if depth < 50 else Bottleneck


def _stages(depth: int) -> Iterator[list[tuple[int, int, int]]]:
    """Input channels, width and stride of each block of each stage."""
    inputs = WIDTHS[0]
    for width, blocks in zip(WIDTHS, BLOCKS[depth], strict=True):
        outputs = width * _block(depth).EXPANSION
        stride = 1 if width == WIDTHS[0] else 2
        yield [(inputs, width, stride), *[(outputs, width, 1)] * (blocks - 1)]
        inputs = outputs


def _stem(image: int) -> dict[str, nn.Module]:
    channels = WIDTHS[0]
    if image == 32:
        conv = nn.Conv2d(3, channels, kernel_size=3, padding=1, bias=False)
        return {"conv": conv, "bn": nn.BatchNorm2d(channels), "relu": nn.ReLU()}
    conv = nn.Conv2d(3, channels, kernel_size=7, stride=2, padding=3, bias=False)
    pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
    return {"conv": conv, "bn": nn.BatchNorm2d(channels), "relu": nn.ReLU(), "maxpool": pool}


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
        block = _block(self.depth)
        layers: OrderedDict[str, nn.Module] = OrderedDict(_stem(self.image))
        for i, stage in enumerate(_stages(self.depth), start=1):
            layers[f"stage{i}"] = nn.Sequential(*(block(*shape) for shape in stage))
        layers["pool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["fc"] = nn.Linear(WIDTHS[-1] * block.EXPANSION, self.classes)
        return nn.Sequential(layers)
