"""Vision transformers: matrix products of one shape, layer after layer, and no batch statistics.

Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale"
(2020), arXiv:2010.11929: the encoder of their equations 1 to 4 and figure 1, and size `b` of their
table 1; sizes `tiny` and `s` are those of Touvron et al. 2020, arXiv:2012.12877, table 1. With
patches of 16 on 224×224 pixels and 1000 classes: 5,717,416 and 22,050,664 parameters ("5M" and
"22M" in that table, 5.7 and 22.1 million in timm) and 86,567,656 (torchvision's documentation).
As in these two, there is no dropout; weights start from a normal distribution with deviation 0.02.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from . import _options
from ._classifiers import ImageClassifier
from ._transformer import Size, choose_size, encoder, initialize

SIZES = {
    "tiny": Size(width=192, layers=12, heads=3),
    "s": Size(width=384, layers=12, heads=6),
    "b": Size(width=768, layers=12, heads=12),
}
EPSILON = 1e-6
"""Epsilon of the layer normalizations."""


class VisionTransformer(nn.Module):
    """Images (n, 3, image, image) to logits (n, classes), read from a class token."""

    def __init__(self, size: Size, *, image: int, patch: int, classes: int) -> None:
        super().__init__()
        width = size.width
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + (image // patch) ** 2, width))
        self.blocks = encoder(size, epsilon=EPSILON)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.head = nn.Linear(width, classes)
        initialize(self)
        nn.init.zeros_(self.class_token)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states = self.patches(images).flatten(2).transpose(1, 2)  # (n, patches, width)
        token = self.class_token.expand(len(states), -1, -1)
        states = torch.cat((token, states), dim=1) + self.positions
        return self.head(self.norm(self.blocks(states))[:, 0])  # type: ignore[no-any-return]


class Architecture(ImageClassifier):
    """A vision transformer of one of three sizes on square color images.

    `image` and `patch` are sides in pixels. `width`, `layers` and `heads` override those of `size`.
    """

    name: str = "vit"

    def __init__(
        self,
        *,
        size: Literal["tiny", "s", "b"] = "s",
        image: int = 224,
        patch: int = 16,
        classes: int = 1000,
        width: int | None = None,
        layers: int | None = None,
        heads: int | None = None,
    ) -> None:
        self.size = choose_size(SIZES, size, width=width, layers=layers, heads=heads)
        _options.expect_at_least(1, patch=patch, classes=classes)
        _options.expect_multiple("image", image, of=patch, called="patch")
        self.image = image
        self.patch = patch
        self.classes = classes

    def build_model(self) -> nn.Module:
        """A new model: images (n, 3, image, image) to logits (n, classes)."""
        return VisionTransformer(
            self.size, image=self.image, patch=self.patch, classes=self.classes
        )
