"""Classifiers of images from timm and torchvision, with random weights: nothing is downloaded.

They are trained on the synthetic images of the shipped architectures.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F

from dpbench.architecture.protocol import Assembled
from dpbench.architectures._synthetic_images import batch
from dpbench.errors import UsageError

IMAGENET_SIDE = 224
IMAGENET_CLASSES = 1000


class ImageClassifier(Assembled):
    """An architecture of a library's model: images (n, channels, side, side) to logits."""

    item = "images"

    def __init__(
        self,
        name: str,
        build: Callable[[], torch.nn.Module],
        *,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        """Raises ValueError for a shape or a number of classes that no images have."""
        if min(shape) < 1 or classes < 1:
            raise ValueError(
                f"got images {shape} and {classes} classes, expected at least 1 of each"
            )
        self.name = name
        self.build_model = build
        self._shape = shape
        self._classes = classes

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, float32 (n, channels, side, side), and their classes, int64 (n,)."""
        images, classes = batch(n, generator, self._shape, self._classes)
        return images, classes

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy; raises UsageError for outputs with auxiliary logits beside."""
        if not isinstance(outputs, torch.Tensor):
            raise UsageError(
                f"architecture {self.name!r}: the model returned a {type(outputs).__name__}, "
                "expected a tensor of logits; perhaps with the option aux_logits=false"
            )
        return F.cross_entropy(outputs, targets)

    def count_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How many images have the largest logit in their class; int64, 0-dimensional."""
        return (outputs.argmax(dim=1) == targets).sum()


def from_timm(model: str, *, image: int | None = None, **fields: Any) -> ImageClassifier:
    """timm's model of that name; `image` is the side of the images, by default the model's own.

    Everything else goes to timm.create_model. Raises UsageError for an unknown name.
    """
    import timm  # type: ignore[import-not-found, unused-ignore]

    _expect_known("timm", model, timm.list_models())
    known = timm.get_pretrained_cfg(model)
    channels, side, _ = known.input_size if known else (3, IMAGENET_SIDE, IMAGENET_SIDE)
    side = image or fields.get("img_size") or side
    return ImageClassifier(
        f"timm:{model}",
        lambda: timm.create_model(model, pretrained=False, **fields),
        shape=(fields.get("in_chans", channels), side, side),
        classes=fields.get("num_classes", known.num_classes if known else IMAGENET_CLASSES),
    )


def from_torchvision(model: str, *, image: int | None = None, **fields: Any) -> ImageClassifier:
    """torchvision's classifier of that name; `image` is the side of the images, by default 224.

    Everything else goes to torchvision.models.get_model. Raises UsageError for an unknown name.
    """
    from torchvision import models  # type: ignore[import-not-found, unused-ignore]

    _expect_known("torchvision", model, models.list_models(module=models))
    side = image or fields.get("image_size") or IMAGENET_SIDE
    return ImageClassifier(
        f"torchvision:{model}",
        lambda: models.get_model(model, weights=None, **fields),
        shape=(3, side, side),
        classes=fields.get("num_classes", IMAGENET_CLASSES),
    )


def _expect_known(library: str, model: str, known: Iterable[str]) -> None:
    names = list(known)
    if model in names:
        return
    near = difflib.get_close_matches(model, names, n=3, cutoff=0.5)
    guess = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(f"unknown model {model!r} of {library}, which knows {len(names)}.{guess}")
