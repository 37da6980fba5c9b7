"""Architectures that dpbench builds: around a user's (model, batch, loss), or around a classifier
of torchvision with random weights, for which nothing is downloaded."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from dpbench.architecture.user_errors import code_place, described, seeded
from dpbench.architectures._classifiers import ImageClassifier
from dpbench.errors import UsageError

IMAGENET_SIDE = 224
IMAGENET_CLASSES = 1000


@dataclass(eq=False)
class UserArchitecture:
    """An architecture of a user's model, batch and loss."""

    name: str
    factory: Callable[[], Any]
    """Returns a tuple that begins with the model."""
    batch: Callable[..., tuple[Any, Any]]
    """Makes n inputs and their targets, as batch(n, generator)."""
    loss: Callable[[Any, Any], torch.Tensor]
    item: str = "samples"
    default_dataset: str = "synthetic"
    notes: tuple[str, ...] = ()
    _last_built: weakref.ref[nn.Module] | None = None

    def build_model(self) -> nn.Module:
        """A model from another call of the factory, initialized from torch's current random state.

        Raises UsageError if it is the one built before, which has been trained already.
        """
        model: nn.Module = self.factory()[0]
        if self._last_built is not None and self._last_built() is model:
            raise UsageError(
                f"architecture {self.name!r}: the factory returned the same model again; expected "
                "a new one at every call: build it inside the function"
            )
        self._last_built = weakref.ref(model)
        return model

    def synthetic_batch(self, n: int, generator: torch.Generator) -> tuple[Any, Any]:
        """The result of batch(n, generator), the same in every process even if it draws global
        random numbers."""
        with seeded(generator.initial_seed()):
            made = self.batch(n, generator)
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise UsageError(
                f"architecture {self.name!r}: batch({n}) returned {described(made)}; expected "
                f"(inputs, targets){code_place(self.batch)}"
            )
        return made[0], made[1]


class TorchvisionClassifier(ImageClassifier):  # type: ignore[misc]
    """torchvision's classifier of a name, trained on synthetic images."""

    notes: tuple[str, ...] = ()

    def __init__(self, model: str, *, image: int | None = None, **fields: Any) -> None:
        """`image` is the side of the images, by default 224; other options go to
        torchvision.models.get_model. Raises UsageError for an unknown name."""
        from torchvision import models  # type: ignore[import-not-found, import-untyped, unused-ignore]

        if model not in models.list_models(module=models):
            raise UsageError(
                f"torchvision has no classifier {model!r}; torchvision.models.list_models() lists "
                "them"
            )
        self.name = f"torchvision:{model}"
        self.image = image or fields.get("image_size") or IMAGENET_SIDE
        self.classes = fields.get("num_classes", IMAGENET_CLASSES)
        self._build = partial(models.get_model, model, weights=None, **fields)

    def build_model(self) -> torch.nn.Module:
        """A new model, initialized from torch's current random state."""
        built: torch.nn.Module = self._build()
        return built
