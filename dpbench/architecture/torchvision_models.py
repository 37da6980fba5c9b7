"""Image classifiers of torchvision, with random weights: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch

from dpbench.architecture.protocol import GeneratedArchitecture
from dpbench.architectures._image_classifier import ImageClassifier
from dpbench.errors import UsageError

IMAGENET_SIDE = 224
IMAGENET_CLASSES = 1000


class TorchvisionClassifier(GeneratedArchitecture, ImageClassifier):  # type: ignore[misc]
    """torchvision's classifier of a name, trained on synthetic images."""

    def __init__(self, model: str, *, image: int | None = None, **fields: Any) -> None:
        """`image` is the side of the images, by default 224; other options go to
        torchvision.models.get_model. Raises UsageError for an unknown name."""
        from torchvision import models  # type: ignore[import-untyped, unused-ignore]

        if model not in models.list_models(module=models):
            raise UsageError(
                f"torchvision has no classifier {model!r}; torchvision.models.list_models() lists "
                "them"
            )
        self.name = f"torchvision:{model}"
        self.image = image or fields.get("image_size") or IMAGENET_SIDE
        self.classes = fields.get("num_classes", IMAGENET_CLASSES)
        self._model = model
        self._fields = fields

    def build_model(self) -> torch.nn.Module:
        """A new model, initialized from torch's current random state."""
        from torchvision import models

        built: torch.nn.Module = models.get_model(self._model, weights=None, **self._fields)
        return built
