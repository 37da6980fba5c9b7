"""Architectures from the result of a user's factory: (model, batch, loss)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dpbench.architecture.protocol import GeneratedArchitecture
from dpbench.architecture.seeding import seeded
from dpbench.architecture.user_errors import place_of
from dpbench.errors import UsageError


class GivenParts(GeneratedArchitecture):
    """An architecture of a user's model, batch and loss."""

    item = "samples"

    def __init__(
        self,
        name: str,
        factory: Callable[[], Any],
        batch: Callable[..., tuple[Any, Any]],
        loss: Callable[[Any, Any], torch.Tensor],
    ) -> None:
        """`factory` returns a tuple that begins with the model; `batch(n, generator)` makes n
        inputs and their targets."""
        self.name = name
        self.factory = factory
        self.batch = batch
        self.loss = loss
        self._last_built: weakref.ref[nn.Module] | None = None

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
                f"(inputs, targets){place_of(self.batch)}"
            )
        inputs, targets = made
        return inputs, targets


def described(value: Any) -> str:
    """A short description of a value for messages."""
    if isinstance(value, torch.Tensor):
        if value.ndim == 0:
            return "a scalar"
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return f"a {type(value).__name__} of ({', '.join(type(part).__name__ for part in value)})"
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


EXPECTED = (
    "; expected (model, batch, loss), where batch(samples, generator) returns (inputs, targets), "
    "as in the file that dpbench init writes, or an object like dpbench.architecture.Architecture"
)
