"""ResNet-18 for 32×32 images: computation-bound, with batch normalisation and 45 MB of gradients.

He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition" (2015), arXiv:1512.03385:
the basic blocks and widths of their table 1, with the stem of their section 4.2 for CIFAR, one 3×3
convolution of stride 1 and no pooling. A shortcut that changes shape is a 1×1 convolution (their
option B).
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from architectures import _flops, _synthetic_images

IMAGE = (3, 32, 32)
CLASSES = 10
WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages, of two blocks each; each but the first halves the image's side."""

PARAMETERS = 11_173_962
"""1,856 in the stem, 147,968 + 525,568 + 2,099,712 + 8,393,728 in the stages, 5,130 at the end."""


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.bn1(self.conv1(images)))
        return F.relu(self.bn2(self.conv2(inner)) + self.shortcut(images))


def _stage(inputs: int, outputs: int) -> nn.Module:
    stride = 1 if inputs == outputs else 2
    return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))


def _forward_flops() -> int:
    """For one image."""
    channels, side, first = IMAGE[0], IMAGE[1], WIDTHS[0]
    flops = _flops.convolution(channels, first, kernel=3, output_side=side)
    inputs = first
    for width in WIDTHS:
        if width != inputs:
            side //= 2
            flops += _flops.convolution(inputs, width, kernel=1, output_side=side)
        flops += _flops.convolution(inputs, width, kernel=3, output_side=side)
        flops += 3 * _flops.convolution(width, width, kernel=3, output_side=side)
        inputs = width
    return flops + _flops.linear(inputs, CLASSES)


FORWARD_FLOPS = _forward_flops()
"""For one image."""


class Architecture:
    """Eight residual blocks on 32×32 colour images of ten classes."""

    name: str = "resnet18"
    item: str = "images"
    default_dataset: str = "synthetic"
    flops_per_item: float = _flops.training(FORWARD_FLOPS)

    def build_model(self) -> nn.Module:
        """A new model: images (n, 3, 32, 32) to logits (n, 10)."""
        first = WIDTHS[0]
        stages = zip((first, *WIDTHS), WIDTHS, strict=False)
        return nn.Sequential(
            OrderedDict[str, nn.Module](
                conv=nn.Conv2d(IMAGE[0], first, kernel_size=3, padding=1, bias=False),
                bn=nn.BatchNorm2d(first),
                relu=nn.ReLU(),
                **{f"stage{i}": _stage(*widths) for i, widths in enumerate(stages, start=1)},
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                fc=nn.Linear(WIDTHS[-1], CLASSES),
            )
        )

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, float32 (n, 3, 32, 32), and classes, int64 (n,), that can be learnt."""
        return _synthetic_images.batch(n, generator, IMAGE)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of the targets."""
        return F.cross_entropy(outputs, targets)

    def count_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How many images have their class as the likeliest; int64, 0-dimensional."""
        return (outputs.argmax(dim=1) == targets).sum()
